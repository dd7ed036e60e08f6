"""The five public tables of the paper's experiments, as data: what is in them, where they come from, how to check them.

Everything here is common knowledge about public tables (names of columns, classes, values of symbolic columns), so
using it takes nothing from anyone's records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .._validate import one_of


@dataclass(frozen=True)
class Provenance:
    """Who made a table, and how to know that it is the one meant."""

    title: str
    publisher: str
    licence: str
    citation: str
    csv_sha256: str  # of the unpacked table
    archive_sha256: str | None  # of the publisher's file, where it is known


@dataclass(frozen=True)
class Source:
    """The publisher's file, and how it becomes a table."""

    addresses: tuple[str, ...]  # tried in this order
    archive: str  # its name
    members: tuple[str, ...] = ()  # what is taken from it, in this order; a pattern stands for all that fit, by name
    headed: bool = False  # whether members begin with a line of column names


class Average(NamedTuple):
    """A column that some copies of a table have in place of a total: one column divided by another."""

    name: str
    total: str
    per: str


@dataclass(frozen=True)
class Entry:
    """One table, a CSV.gz with a header."""

    name: str
    file: str
    rows: int
    columns: tuple[str, ...]  # all, in order
    target: str
    task: str
    provenance: Provenance
    source: Source
    drop: tuple[str, ...] = ()  # neither input nor target
    classes: tuple[Any, ...] | None = None
    symbolic: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # columns of text, and their values
    indicators: tuple[str, ...] = ()  # columns of 0 and 1 that are no numeric attributes: not standardised
    averages: Mapping[str, Average] = field(default_factory=dict)  # by the column of totals whose place one takes
    train_rows: int | None = None  # length of the publisher's own training part, which comes first
    dtype: str = "float64"  # that holds every number of the table exactly


def entry_of(name: str) -> Entry:
    """Return the entry of a name, or say which names there are."""
    one_of("dataset", name, CATALOGUE)
    return CATALOGUE[name]


def _numbered(stem: str, first: int, last: int) -> tuple[str, ...]:
    return tuple(f"{stem}{i}" for i in range(first, last + 1))


UCI = "UCI Machine Learning Repository"
UCI_FILES = "https://archive.ics.uci.edu/ml/machine-learning-databases"
UCI_PUBLIC = "https://archive.ics.uci.edu/static/public"

CALIFORNIA = Entry(
    name="california_housing",
    file="california_housing.csv.gz",
    rows=20_640,
    columns=(
        "longitude", "latitude", "housingMedianAge", "totalRooms", "totalBedrooms", "population", "households",
        "medianIncome", "medianHouseValue",
    ),
    target="medianHouseValue",
    task="regression",
    averages={  # as scikit-learn's copy has them; population stays
        "totalRooms": Average("AveRooms", "totalRooms", "households"),
        "totalBedrooms": Average("AveBedrms", "totalBedrooms", "households"),
        "households": Average("AveOccup", "population", "households"),
    },
    provenance=Provenance(
        title="California Housing",
        publisher="Luis Torgo, regression data sets, University of Porto (first StatLib)",
        licence="none stated by the publisher",
        citation="R. Kelley Pace and Ronald Barry, Sparse Spatial Autoregressions, Statistics and Probability Letters "
        "33 (1997) 291-297",
        csv_sha256="22765e46e56a449c6e095c53d3c89da5cbd0d8778d94b5667e7c3ed8578f7e8c",
        archive_sha256="aaa5c9a6afe2225cc2aed2723682ae403280c4a3695a2ddda4ffb5d8215ea681",
    ),
    source=Source(
        addresses=(
            "https://www.dcc.fc.up.pt/~ltorgo/Regression/cal_housing.tgz",
            "https://ndownloader.figshare.com/files/5976036",
        ),
        archive="cal_housing.tgz",
        members=("CaliforniaHousing/cal_housing.data",),
    ),
)  # fmt: skip

GAS = Entry(
    name="gas_turbine",
    file="gas_turbine.csv.gz",
    rows=36_733,
    columns=("AT", "AP", "AH", "AFDP", "GTEP", "TIT", "TAT", "TEY", "CDP", "CO", "NOX"),
    target="CO",
    task="regression",
    drop=("NOX",),
    provenance=Provenance(
        title="Gas Turbine CO and NOx Emission Data Set",
        publisher=f"{UCI}, data set 551",
        licence="CC BY 4.0",
        citation="H. Kaya, P. Tufekci and E. Uzun, Turkish Journal of Electrical Engineering and Computer Sciences 27 "
        "(2019); doi 10.24432/C5WC95",
        csv_sha256="cffa88e4c9aae22c55457321fb2d07e585f85de2eeeeb401a5dc4e6873f60329",
        archive_sha256=None,
    ),
    source=Source(
        addresses=(
            f"{UCI_PUBLIC}/551/gas+turbine+co+and+nox+emission+data+set.zip",
            f"{UCI_FILES}/00551/pp_gas_emission.zip",
        ),
        archive="pp_gas_emission.zip",
        members=tuple(f"gt_{year}.csv" for year in range(2011, 2016)),
        headed=True,
    ),
)

BLOG = Entry(
    name="blog_feedback",
    file="blog_feedback.csv.gz",
    rows=60_021,
    columns=(*_numbered("x", 1, 280), "y"),
    target="y",
    task="regression",
    indicators=_numbered("x", 263, 269),  # weekday of the base time; the paper's authors leave these seven alone
    train_rows=52_397,
    provenance=Provenance(
        title="BlogFeedback",
        publisher=f"{UCI}, data set 304",
        licence="CC BY 4.0",
        citation="Krisztian Buza, Feedback Prediction for Blogs (2014); doi 10.24432/C58S3F",
        csv_sha256="e2600416a052a627eb3282bb83f5b811f4fa3d9e212d5e4c07f8eb1205bf2cb6",
        archive_sha256="1ba74e5ad920f7cd037502b2968581cc695146a226a73eff52fe8ad875ed4bcf",
    ),
    source=Source(
        addresses=(f"{UCI_FILES}/00304/BlogFeedback.zip", f"{UCI_PUBLIC}/304/blogfeedback.zip"),
        archive="BlogFeedback.zip",
        members=("blogData_train.csv", "blogData_test-2012.*.csv"),
    ),
)

COVERTYPE = Entry(
    name="covertype",
    file="covertype.csv.gz",
    rows=581_012,
    columns=(
        "Elevation", "Aspect", "Slope", "Horizontal_Distance_To_Hydrology", "Vertical_Distance_To_Hydrology",
        "Horizontal_Distance_To_Roadways", "Hillshade_9am", "Hillshade_Noon", "Hillshade_3pm",
        "Horizontal_Distance_To_Fire_Points", *_numbered("Wilderness_Area", 1, 4), *_numbered("Soil_Type", 1, 40),
        "Cover_Type",
    ),
    target="Cover_Type",
    task="classification",
    classes=(1, 2, 3, 4, 5, 6, 7),
    indicators=(*_numbered("Wilderness_Area", 1, 4), *_numbered("Soil_Type", 1, 40)),
    dtype="int16",
    provenance=Provenance(
        title="Covertype",
        publisher=f"{UCI}, data set 31",
        licence="CC BY 4.0 (copyright Jock A. Blackard and Colorado State University)",
        citation="Jock A. Blackard, Covertype (1998); doi 10.24432/C50K5N",
        csv_sha256="ea35ca6820fcbe0bdc6707e9ed31e11a9de84f07d88da73b511c737383c271a6",
        archive_sha256=None,
    ),
    source=Source(
        addresses=(f"{UCI_PUBLIC}/31/covertype.zip", f"{UCI_FILES}/covtype/covtype.data.gz"),
        archive="covertype.zip",
        members=("covtype.data.gz",),
    ),
)  # fmt: skip

KDD_CLASSES = (
    "back.", "buffer_overflow.", "ftp_write.", "guess_passwd.", "imap.", "ipsweep.", "land.", "loadmodule.",
    "multihop.", "neptune.", "nmap.", "normal.", "perl.", "phf.", "pod.", "portsweep.", "rootkit.", "satan.", "smurf.",
    "spy.", "teardrop.", "warezclient.", "warezmaster.",
)  # fmt: skip
KDD_SERVICES = (
    "IRC", "X11", "Z39_50", "auth", "bgp", "courier", "csnet_ns", "ctf", "daytime", "discard", "domain", "domain_u",
    "echo", "eco_i", "ecr_i", "efs", "exec", "finger", "ftp", "ftp_data", "gopher", "hostnames", "http", "http_443",
    "imap4", "iso_tsap", "klogin", "kshell", "ldap", "link", "login", "mtp", "name", "netbios_dgm", "netbios_ns",
    "netbios_ssn", "netstat", "nnsp", "nntp", "ntp_u", "other", "pm_dump", "pop_2", "pop_3", "printer", "private",
    "red_i", "remote_job", "rje", "shell", "smtp", "sql_net", "ssh", "sunrpc", "supdup", "systat", "telnet", "tftp_u",
    "tim_i", "time", "urh_i", "urp_i", "uucp", "uucp_path", "vmnet", "whois",
)  # fmt: skip

KDD = Entry(
    name="kddcup99",
    file="kddcup99_10percent.csv.gz",
    rows=494_021,
    columns=(
        "duration", "protocol_type", "service", "flag", "src_bytes", "dst_bytes", "land", "wrong_fragment", "urgent",
        "hot", "num_failed_logins", "logged_in", "num_compromised", "root_shell", "su_attempted", "num_root",
        "num_file_creations", "num_shells", "num_access_files", "num_outbound_cmds", "is_host_login", "is_guest_login",
        "count", "srv_count", "serror_rate", "srv_serror_rate", "rerror_rate", "srv_rerror_rate", "same_srv_rate",
        "diff_srv_rate", "srv_diff_host_rate", "dst_host_count", "dst_host_srv_count", "dst_host_same_srv_rate",
        "dst_host_diff_srv_rate", "dst_host_same_src_port_rate", "dst_host_srv_diff_host_rate", "dst_host_serror_rate",
        "dst_host_srv_serror_rate", "dst_host_rerror_rate", "dst_host_srv_rerror_rate", "label",
    ),
    target="label",
    task="classification",
    classes=KDD_CLASSES,
    symbolic={
        "protocol_type": ("icmp", "tcp", "udp"),
        "service": KDD_SERVICES,
        "flag": ("OTH", "REJ", "RSTO", "RSTOS0", "RSTR", "S0", "S1", "S2", "S3", "SF", "SH"),
    },
    provenance=Provenance(
        title="KDD Cup 1999 Data, 10 % subset",
        publisher=f"{UCI}, data set 130",
        licence="CC BY 4.0",
        citation="S. Stolfo, W. Fan, W. Lee, A. Prodromidis and P. Chan, KDD Cup 1999 Data; doi 10.24432/C51C7N",
        csv_sha256="d72161eee165aede2e552235dd8816c75225e277a5fa318747e5a84fcf29903b",
        archive_sha256="8045aca0d84e70e622d1148d7df782496f6333bf6eb979a1b0837c42a9fd9561",
    ),
    source=Source(
        addresses=(
            "https://kdd.ics.uci.edu/databases/kddcup99/kddcup.data_10_percent.gz",
            f"{UCI_FILES}/kddcup99-mld/kddcup.data_10_percent.gz",
        ),
        archive="kddcup.data_10_percent.gz",
    ),
)  # fmt: skip

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in (CALIFORNIA, GAS, BLOG, COVERTYPE, KDD)}
