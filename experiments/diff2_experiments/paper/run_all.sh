#!/usr/bin/env bash
# All runs behind the tables of docs/reproduction.md, in order. Whatever is finished is not made again, so this may be
# killed at any time and started again with the same command. One driver at a time fills a directory of stores; started
# with setsid, it ends with all its processes by: kill -- -$(cat STORES/driver.pid)
#
#   DIFF2_DATA=DIR experiments/diff2_experiments/paper/run_all.sh STORES            # all stages
#   DIFF2_DATA=DIR experiments/diff2_experiments/paper/run_all.sh STORES NAME ...   # these, in this order
#   experiments/diff2_experiments/paper/run_all.sh STORES --list                    # which there are, and which are done
#
# A stage leaves STORES/DATASET/runs.jsonl, its tables and figures in STORES/DATASET/found/NAME, and a line in
# STORES/progress.log. JOBS (2) settings are tried at the same time, with one thread each, for SEEDS (5) seeds from
# FIRST_SEED (0) on; DIFF2 names the command. Another first seed than 0 wants STORES of its own; its stages are named
# NAME-from-FIRST_SEED.
set -u
cd "$(dirname "$0")/../../.."
stores=${1:?usage: run_all.sh STORES [NAME ... | --list]}
shift
diff2=${DIFF2:-diff2}
jobs=${JOBS:-2}
seeds=${SEEDS:-5}
first_seed=${FIRST_SEED:-0}
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=1

paper=gd,dpgd,diff2
ours=$paper,dpgd_cosine,diff2_cosine,dpgd_mean,diff2_mean,dpgd_adam,diff2_adam

# name, experiment, epsilon, accounting, methods, grid. The paper's own comparison comes first.
stages="
california-paper-3    california_housing  3  paper  $paper  full
gas-paper-3           gas_turbine         3  paper  $paper  full
covertype-paper       covertype           3  paper  $paper  halved
kddcup99-paper        kddcup99            3  paper  $paper  halved
kddcup99-all          kddcup99            3  paper  $paper  halved-full
kddcup99-scaled       kddcup99_scaled     3  paper  gd,dpgd  full
blog-paper            blog_feedback       3  paper  $paper  halved
blog-all              blog_feedback       3  paper  $paper  halved-full
california-ours       california_housing  3  exact  $ours   halved
gas-ours              gas_turbine         3  exact  $ours   halved
california-paper-5    california_housing  5  paper  $paper  full
california-exact-3    california_housing  3  exact  $paper  full
california-exact-5    california_housing  5  exact  $paper  full
gas-paper-5           gas_turbine         5  paper  $paper  full
gas-exact-3           gas_turbine         3  exact  $paper  full
gas-exact-5           gas_turbine         5  exact  $paper  full
blog-ours             blog_feedback_ours  3  exact  $ours  halved
covertype-ours        covertype_ours      3  exact  $ours  halved
kddcup99-ours         kddcup99_ours       3  exact  $ours  halved
"

mkdir -p "$stores/done"
if [ "${1:-}" = --list ]; then
    while read -r name rest; do
        [ -n "$name" ] && echo "$name $([ -e "$stores/done/$name" ] && cat "$stores/done/$name" || echo 'to do')"
    done <<<"$stages"
    exit
fi
exec 9>"$stores/lock"
flock -n 9 || { echo "another driver fills $stores; its process: $(cat "$stores/driver.pid")" >&2; exit 1; }
echo $$ >"$stores/driver.pid"

log() { echo "$(date '+%F %T') $*" | tee -a "$stores/progress.log"; }

run() {
    local name=$1 experiment=$2 epsilon=$3 accounting=$4 methods=$5 grid=$6 out="$stores/$2" began=$SECONDS found_in
    [ -e "$stores/done/$name" ] && return
    log "$name starts"
    if "$diff2" reproduce --dataset "$experiment" --epsilon "$epsilon" --accounting "$accounting" \
        --algorithms "$methods" --seeds "$seeds" --first-seed "$first_seed" --grid "$grid" --jobs "$jobs" --out "$out"; then
        found_in="$out/found/$name"
        [ "$first_seed" = 0 ] || found_in+="-from-$first_seed"
        mkdir -p "$found_in"
        find "$out" -maxdepth 1 -type f ! -name runs.jsonl ! -name store-id -exec mv -t "$found_in" {} +
        log "$name done after $((SECONDS - began)) s" | tee "$stores/done/$name"
    else
        log "$name failed with status $? after $((SECONDS - began)) s"
    fi
}

for wanted in "${@:-all}"; do
    found=
    while read -r name rest; do
        # shellcheck disable=SC2086  # the rest of a line is several words
        if [ -n "$name" ] && { [ "$wanted" = all ] || [ "$wanted" = "$name" ]; }; then found=1; run "$name" $rest </dev/null; fi
    done <<<"$stages"
    [ -n "$found" ] || { echo "no stage $wanted; see --list" >&2; exit 2; }
done
