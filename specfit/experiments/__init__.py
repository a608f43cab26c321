"""The paper's experiments from one file: what to compare, what runs, where the results lie, and the tables from them.

`read_experiment` (file.py) checks a TOML file, `plan_cells` (plan.py) lists what it asks for, `run_experiment`
(driver.py) does what is missing, in this process or through an executor, and report.py makes tables beside the paper's.
"""
