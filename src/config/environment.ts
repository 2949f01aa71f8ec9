import { hostname, userInfo } from 'node:os';

/** What the environment says; the only place that reads it. */
export const environment = {
  get password(): string | undefined {
    return process.env.LONGSHORE_PASSWORD;
  },
  get newPassword(): string | undefined {
    return process.env.LONGSHORE_NEW_PASSWORD;
  },
  /** `debug`, `info`, `warn`, `error`. */
  get logLevel(): string | undefined {
    return process.env.LONGSHORE_LOG_LEVEL;
  },
  /** Shown colours and live lines are for people: https://no-color.org */
  get noColor(): boolean {
    return (process.env.NO_COLOR ?? '') !== '';
  },
};

/** `user@host` of this process, as Kopia names a client. */
export function defaultClient(): { username: string; hostname: string } {
  return { username: userName(), hostname: hostname().toLowerCase() };
}

/** Containers may run under a uid that no user database knows. */
function userName(): string {
  try {
    return userInfo().username;
  } catch {
    return String(process.getuid?.() ?? 'unknown');
  }
}
