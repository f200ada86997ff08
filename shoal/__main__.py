"""`python -m shoal` is the `shoal` command; child processes are started this way, so that they run in the parent's own
environment.

As long as nothing was begun, Ctrl-C just ends the process, without a traceback out of an import; `cli.main` takes over."""

import signal

if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from shoal.cli import main

    main()
