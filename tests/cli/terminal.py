"""A program behind a pseudo-terminal: type at it, wait for what it shows."""

import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import fcntl
import time

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\r")


class Terminal:
    def __init__(self, command, env, columns=120):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.master = master
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env, close_fds=True,
                                        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.raw = ""
        self.seen = 0  # what expect() has passed, in the plain text

    def plain(self):
        return ESCAPES.sub("", self.raw)

    def _read(self, seconds):
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the other side is closed
            return False
        self.raw += data.decode("utf-8", "replace")
        return bool(data)

    def expect(self, text, seconds=60):
        """Waits for TEXT beyond what earlier calls found, and returns what came before it."""
        end = time.monotonic() + seconds
        while True:
            plain = self.plain()
            at = plain.find(text, self.seen)
            if at >= 0:
                before = plain[self.seen:at]
                self.seen = at + len(text)
                return before
            if time.monotonic() > end:
                raise AssertionError(f"never saw {text!r} in {plain[self.seen:]!r}")
            self._read(0.2)
            if self.process.poll() is not None and not self._read(0):
                assert text in self.plain()[self.seen:], f"ended with {self.process.returncode} before {text!r}: {plain[self.seen:]!r}"

    def type(self, text):
        os.write(self.master, text.encode())

    def interrupt(self):
        self.type("\x03")

    def wait(self, seconds=30):
        """The exit status; reads on so that the program can write."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, f"still running: {self.plain()[self.seen:]!r}"
            self._read(0.1)
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self.master)
