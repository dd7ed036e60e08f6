"""The benchmark that decides: private models of public tables, each made as its library recommends, none tuned.

python -m benchmarks.private_tables run --store runs --jobs 2
python -m benchmarks.private_tables report --store runs

Tables are those of installable packages and the paper's five (``tables.py``), described by public facts (``schemas/``).
"""
