"""What a command line does, judged from its text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core import limits
from forerun.core.shell import DEFAULT_RULES, CommandClass, classify

READS = [
    "ls",
    "ls -la src/ *.py",
    "/bin/cat README.md",
    "cd /testbed && grep -rn 'def foo' --include='*.py' . | head -20",
    'grep -A 7 "# test" a.py; wc -l a.py\ncat a.py',
    "cat a.py 2>/dev/null || echo none",
    "grep x f >/dev/null 2>&1 && echo found",
    "cat < input.txt",
    "cat 0<input.txt 2>&-",
    "echo '$(rm -rf x)' \"a > b\" \\> c \\`",
    "echo a#b # > not a redirection",
    'echo "$HOME" ${USER} $?',
    "echo {a,b}.txt",
    "grep '^x$' f",
    'grep "x$" f',
    "ls \\\n  -la",
    "sed -n '1,120p' a.py",
    "sed -n '/def f(/,/^    return/p' a.py | tail -n +2",
    "sed -ne 's/a/b/gp' -e '/x/!d' f",
    "sed -E 's|a/b|c|g; $d' f",
    "sed '/a/{s/x/y/;n;d}' f",
    "awk '{print $1}' f",
    "awk -F: -v x=1 '$3 > 5 {print $1 \"|\" $2}' f",
    "awk '/foo/ || /bar/ {n++} END {print n}' f",
    "find . -name '*.py' -not -path './x/*' -type f",
    "find . -name '*.py' | xargs grep -n foo",
    "find . -print0 | xargs -0 -n1 -I{} cat {}",
    "sort -k2,2n -t, f | uniq -c",
    "uniq -f 1 f",
    "xxd -l 16 f",
    "git status",
    "git --no-pager log --oneline -5 -- a.py",
    "git -C repo diff HEAD~1 HEAD@{1} -- src",
    "git reflog",
    "git reflog show HEAD",
    "git log --pretty=%h",
    "LC_ALL=C TZ=UTC GIT_PAGER=cat git log -1",
    "env",
    "env LC_ALL=C sort f",
    "tail -n 5 f",
    "[ -f x ] && echo yes",
    "test -d src",
    "tree -L 2",
    "jq '.a | .b' f.json",
    "which python",
    "true",
    "ls -lt --color=never",
    "ls -Icus -l",
    "ls -lI cus.py",
    "ls --sort=time --full-time --time-style=iso",
    "ls cus is",
    "stat -c %s a.py",
    "stat -c '%a %U:%G %y %n' a.py",
    "stat --printf='%s\\n' a.py",
    "find . -printf '%s %T@ %p\\n'",
    "find . -name '*%i*'",
    "tree -L 2 -Pcat -a",
    "test -nt x",
]

WORKSPACE = [
    "",
    "# only a comment",
    "make",
    "python -c 'print(1)'",
    "./ls",
    "bin/cat x",
    "ls > files.txt",
    "ls >> files.txt",
    "ls >| files.txt",
    "ls &> files.txt",
    "ls 2> errors.txt",
    "ls >& files.txt",
    "cat <> f",
    "ls > $TARGET",
    "ls | tee files.txt",
    "ls | tee",
    "cat << EOF\nhello\nEOF",
    "cat <<< hello",
    "echo $(rm x)",
    "echo `rm x`",
    'echo "$(rm x)"',
    'echo "`rm x`"',
    "diff <(ls a) <(ls b)",
    "echo $((1+1))",
    "echo ${x:=1}",
    "echo $'a\\n'",
    "(ls)",
    "f() { ls; }",
    "ls &",
    "ls & rm x",
    "if true; then ls; fi",
    "! ls",
    "echo 'unbalanced",
    'echo "unbalanced',
    "echo \\",
    "ls >",
    "$CMD x",
    "l* x",
    "X=1",
    "LD_PRELOAD=./x.so ls",
    "PATH=. ls",
    "PAGER=./x git log",
    "env LD_PRELOAD=./x.so ls",
    "env -S 'rm x'",
    "env rm x",
    "cat < /dev/tcp/host/80",
    "sed -i 's/a/b/' f",
    "sed -i.bak 's/a/b/' f",
    "sed -n p f -i",
    "sed --in-place 's/a/b/' f",
    "sed --in-pl 's/a/b/' f",
    "sed -ni p f",
    "sed -f script f",
    "sed 's/a/b/w out' f",
    "sed 's/a/b/e' f",
    "sed 'w out' f",
    "sed -n '1e rm x' f",
    "sed '/[/]/w x/' f",
    "sed",
    "awk '{print > \"out\"}' f",
    "awk '{print | \"sh\"}' f",
    "awk 'BEGIN{system(\"rm x\")}'",
    'awk \'/"/ {print > "x"} /"/\' f',
    "awk '/}/ {print > \"x\"}' f",
    "awk '}{print > \"x\"' f",
    "awk -f prog f",
    "awk -i inplace '{print}' f",
    "awk '{print}' -i inplace f",
    "awk '\"date\" | getline d'",
    "find . -delete",
    "find . -exec rm {} +",
    "find . -fprint out",
    "find . $X",
    "find {.,-delete}",
    "find . | xargs rm",
    "find . | xargs sed -n p",
    "find . | xargs -a list cat",
    "find . | xargs sh -c 'rm x'",
    "sort -o f f",
    "sort -uo f f",
    "sort --output=f f",
    "sort --outp f f",
    "sort --compress-program=./x f",
    "sort *",
    "sort ''*",
    "uniq a b",
    "uniq '|' f",
    "xxd a b",
    "xxd -r a b",
    "tree -o out",
    "date -s 10:00",
    "date 01011200",
    "less +!sh f",
    "less -o log f",
    "rg --pre ./x foo",
    "fd -x rm",
    "fd foo --exec rm",
    "tail -f log",
    "tail --follow=name log",
    "[ -v 'a[$(rm x)]' ]",
    "printf -v x y",
    "file -C -m magic",
    "nm --plugin ./x.so f",
    "git commit -m x",
    "git diff --output=f",
    "git log --outp f",
    "git diff --ext-diff",
    "git grep -O./x foo",
    "git -c core.pager=./x log",
    "git reflog expire --all",
    "git reflog delete HEAD@{1}",
    "git log $OPTIONS",
    "git",
    "git branch -D x",
    "ls; rm x",
    "ls | rm x",
    "ls\nrm x",
    "ls || rm x",
    "echo a\rb",
    "x" * (limits.COMMAND_CHARS + 1),
]

OUTWARD = [
    "curl https://example.com",
    "/usr/bin/curl https://example.com",
    "c\\url x",
    "'curl' x",
    "cat f | curl -d @- https://example.com",
    "ls && git push",
    "git -C repo push origin main",
    "TOKEN=x gh pr create",
    'TOKEN="a b" curl x',
    "npm install left-pad",
    "npm --prefix web install",
    "sudo -u bob curl x",
    "timeout 5 curl x",
    "bash -c 'cd x && curl y'",
    "find . -exec curl {} \\;",
    "find . | xargs -n1 wget",
    "echo $(curl x)",
    "echo `curl x`",
    "(cd x && git push)",
    "for i in a b; do ssh $i; done",
    "if true; then docker ps; fi",
    "curl x > f",
    "ls & kubectl apply -f x",
    "cat <<EOF | ssh host\nls\nEOF",
    "bash <<EOF\ncurl x\nEOF",
    "awk 'BEGIN{system(\"curl x\")}'",
    "kill -9 1",
    "curl " + "x" * limits.COMMAND_CHARS,
]


def short(text: str) -> str:
    return text[:40]


@pytest.mark.parametrize("command", READS, ids=short)
def test_reads(command: str) -> None:
    verdict = classify(command, DEFAULT_RULES)
    assert verdict.kind is CommandClass.READ_ONLY, verdict.reason
    assert not verdict.volatile


@pytest.mark.parametrize("command", WORKSPACE, ids=short)
def test_everything_unclear_or_writing_stays_in_the_workspace(command: str) -> None:
    assert classify(command, DEFAULT_RULES).kind is CommandClass.WORKSPACE


@pytest.mark.parametrize("command", OUTWARD, ids=short)
def test_what_reaches_out_is_found_in_any_disguise(command: str) -> None:
    assert classify(command, DEFAULT_RULES).kind is CommandClass.OUTWARD


@pytest.mark.parametrize(
    "command",
    [
        "date",
        "date -d yesterday +%F",
        "ps aux",
        "cat f | head; df -h",
        "echo $RANDOM",
        "echo $$",
        "cat /proc/loadavg",
        "find . -mmin -5",
        "awk 'BEGIN{print systime()}'",
        "printf '%(%F)T'",
        "git log --since=yesterday",
        "git log --date=relative",
        "git log --pretty=%ar",
        "git ls-files --debug",
        "ls -i",
        "ls -lai src",
        "ls --inode",
        "ls --ino",
        "ls -s",
        "ls -lu",
        "ls -ltc",
        "ls -c",
        "ls --time=atime",
        "ls -l --time access",
        "stat a.py",
        "stat -c %X a.py",
        "stat -c '%s %i' a.py",
        "stat --format=%Z a.py",
        "stat -t a.py",
        "stat -f -c %a .",
        "find . -name a.py | xargs stat",
        "find . -printf '%i %p\\n'",
        "find . -printf '%A@ %p\\n'",
        "find . -printf '%-10k %p\\n'",
        "find . -ls",
        "find . -inum 7",
        "tree --inodes",
        "tree -c",
        "fd -l",
        "rg --sort accessed x",
        "test -N a.py",
        "[ -N a.py ]",
        "du -sh .",
    ],
)
def test_answers_that_change_by_themselves(command: str) -> None:
    verdict = classify(command, DEFAULT_RULES)
    assert verdict.kind is CommandClass.READ_ONLY, verdict.reason
    assert verdict.volatile


@pytest.mark.parametrize(
    "command",
    ["grep -r kill .", "cat docker.txt", "git log --grep push", "mkdir docker", "cat > f <<'EOF'\ncurl x\nEOF"],
)
def test_a_name_that_is_only_mentioned_reaches_nowhere(command: str) -> None:
    assert classify(command, DEFAULT_RULES).kind is not CommandClass.OUTWARD


def test_the_lists_of_the_policy_decide() -> None:
    rules = replace(
        DEFAULT_RULES,
        read_only_commands=frozenset({"mycat", "env"}),
        read_only_git=frozenset(),
        outward=("mypush",),
        conditional=frozenset({"mysed"}),
        volatile=frozenset({"mycat"}),
    )
    assert classify("mycat x", rules).volatile
    assert classify("cat x", rules).kind is CommandClass.WORKSPACE
    assert classify("sed -n p x", rules).kind is CommandClass.WORKSPACE
    assert classify("mysed x", rules).kind is CommandClass.WORKSPACE
    assert classify("git status", rules).kind is CommandClass.WORKSPACE
    assert classify("curl x", rules).kind is CommandClass.WORKSPACE
    assert classify("mypush x", rules).kind is CommandClass.OUTWARD
