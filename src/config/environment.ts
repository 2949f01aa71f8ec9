import { homedir, hostname, userInfo } from 'node:os';
import { join } from 'node:path';

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
  /** Where caches go: https://specifications.freedesktop.org/basedir-spec */
  get cacheDirectory(): string {
    return join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'longshore');
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
