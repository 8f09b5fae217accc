"""The table of mutants fits the code as it is; `python -m tests.mutants` runs it."""

import ast
import functools
import os
import subprocess
import sys

from tests.mutants import MUTANTS, ROOT, edited


@functools.cache
def text_of(file):
    return (ROOT / file).read_text(encoding="utf-8")


@functools.cache
def parsed(file):
    return ast.dump(ast.parse(text_of(file)))


def test_every_mutant_has_a_name_and_a_fault_of_its_own():
    assert len(MUTANTS) >= 40
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutant[1:5] for mutant in MUTANTS}) == len(MUTANTS)


def test_every_fault_has_one_place_and_leaves_a_program():
    for mutant in MUTANTS:
        changed = edited(text_of(mutant.file), mutant)
        assert ast.dump(ast.parse(changed)) != parsed(mutant.file), mutant


def test_every_test_that_is_named_exists(request):
    assert all(mutant.tests for mutant in MUTANTS)
    named = dict.fromkeys(test for mutant in MUTANTS for test in mutant.tests)
    ids = [item.nodeid for item in request.session.items]
    if not {test.partition("::")[0] for test in named} <= {each.partition("::")[0] for each in ids}:
        command = [sys.executable, "-m", "pytest", "-n0", "--collect-only", *named]  # a part is run
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        ids = done.stdout.splitlines()
    collected = {each.partition("@")[0] for each in ids}
    collected |= {name.partition("[")[0] for name in collected}
    assert set(named) <= collected, "what kills a mutant is a part of make test"


def test_tests_of_a_module_go_to_one_process(request):
    """With pytest 9.2 xdist scatters them and says nothing: fixtures and programs are made twice."""
    assert "PYTEST_XDIST_WORKER" not in os.environ or request.node.nodeid.endswith("test_mutants")
