"""The chat: in a terminal, and line by line through a pipe."""

import time

import pytest
from terminal import Terminal

ENDLESS = "Count from 3 to 12."  # the demo counts right and does not stop


@pytest.fixture
def chat(glint, environment):
    started = []

    def start(*arguments):
        terminal = Terminal([glint, "chat", *map(str, arguments)], environment)
        started.append(terminal)
        terminal.expect("> ")
        return terminal

    yield start
    for terminal in started:
        terminal.close()


def test_a_conversation_with_thinking_and_speed(chat):
    terminal = chat()
    assert "demo model" in terminal.plain() and "/help" in terminal.plain()
    assert "loading [" in terminal.raw and "100%" in terminal.raw
    terminal.type("What is 17 + 25?\r")
    terminal.expect("7+5=12")  # thinking
    terminal.expect("17 + 25 = 42")
    terminal.expect("tok/s")
    assert "\x1b[2m" in terminal.raw  # dimmed
    terminal.expect("> ")
    terminal.type("/think off\r")
    terminal.expect("thinking off")
    terminal.expect("> ")
    terminal.type("What is 3 + 4?\r")
    shown = terminal.expect("3 + 4 = 7")
    assert shown.replace("What is 3 + 4?", "").strip() == ""
    terminal.expect("> ")
    terminal.type("/quit\r")
    assert terminal.wait() == 0


def test_interrupts_stop_the_answer_and_only_twice_the_program(chat):
    terminal = chat("--isa", "scalar", "--no-think")
    terminal.type(ENDLESS + "\r")
    terminal.expect("7")
    time.sleep(0.2)
    terminal.interrupt()
    terminal.expect("(stopped)", seconds=10)
    terminal.expect("> ")
    terminal.type("What is 17 + 25?\r")
    terminal.expect("17 + 25 = ")  # after so much counting the demo may get the sum itself wrong
    terminal.expect("> ")
    terminal.type("half a li")
    terminal.expect("half a li")
    terminal.interrupt()
    terminal.expect("Ctrl-C again")
    terminal.expect("> ")
    terminal.type("What is 3 + 4?\r")  # the half line is gone
    terminal.expect("3 + 4 = ")
    terminal.expect("> ")
    terminal.interrupt()
    terminal.expect("Ctrl-C again")
    terminal.expect("> ")
    terminal.interrupt()
    assert terminal.wait() == 0


def test_no_interrupt_is_lost_between_two_keys(chat):
    terminal = chat()
    for _ in range(200):  # each comes as soon as the last key's echo or the prompt does
        terminal.type("a")
        terminal.expect("a")
        terminal.interrupt()
        terminal.expect("Ctrl-C again")
        terminal.expect("> ")
        terminal.type("\\\r")  # so that the next one is a first one again
        terminal.expect(". ")


def test_commands_answer(chat):
    terminal = chat()
    terminal.type("/help\r")
    terminal.expect("/reset")
    terminal.expect("> ")
    terminal.type("/hlep\r")
    terminal.expect("did you mean /help?")
    terminal.expect("> ")
    terminal.type("/system Answer in one word.\r")
    terminal.expect("system message set")
    terminal.expect("> ")
    terminal.type("/reset\r")
    terminal.expect("forgotten")
    terminal.expect("> ")
    terminal.type("\x04")
    assert terminal.wait() == 0


def test_history_survives_the_program(chat, home):
    first = chat()
    first.type("What is 17 + 25?\r")
    first.expect("17 + 25 = 42")
    first.expect("> ")
    first.type("/quit\r")
    first.wait()
    assert (home / ".local/state/glint/history").stat().st_mode & 0o777 == 0o600
    second = chat()
    second.type("\x1b[A\x1b[A")
    second.expect("What is 17 + 25?")
    second.type("\r")
    second.expect("17 + 25 = 42")


def test_letters_beyond_ascii_and_continued_lines(chat):
    terminal = chat()
    terminal.type("grüße\x7f\x7f")
    terminal.expect("gr")
    terminal.type("\\\r")
    terminal.expect(". ")
    terminal.type("and more\r")
    terminal.expect("tok/s")


def test_through_a_pipe_only_answers_are_written(run):
    done = run("chat", stdin="What is 17 + 25?\n\n/think off\nWhat is 3 + 4?\n")
    assert done.returncode == 0
    assert done.stdout == "17 + 25 = 42\n3 + 4 = 7\n"
    assert "thinking off" in done.stderr


def test_the_conversation_is_remembered_until_reset(run):
    talk = "My name is Nora.\nWhat is my name?\n"
    assert "Nora" in run("chat", "--no-think", stdin=talk).stdout.splitlines()[-1]
    forgot = run("chat", "--no-think", stdin=talk.replace("\n", "\n/reset\n", 1)).stdout.splitlines()
    assert "Nora" not in forgot[-1]


def test_a_conversation_that_outgrows_the_context_says_so(run):
    done = run("chat", "--ctx", 64, stdin="What is 17 + 25?\n" + "word " * 200 + "\n")
    assert done.returncode == 1
    assert done.stdout.startswith("17 + 25 = 42\n")
    assert "64" in done.stderr
