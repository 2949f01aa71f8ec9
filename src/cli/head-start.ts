import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Secret } from '../base/index.ts';
// Not by their rooms: all the rest of these would be loaded first.
import { environment } from '../config/environment.ts';
import { deriveFormatKey } from '../repository/format/keys.ts';

/** Verbs that open a repository whatever follows them. */
const VERBS = ['snapshot', 'policy'];
/** What ends a command before it opens anything. */
const HELP = ['--help', '-h'];
/** Where another password is asked for than that of the environment. */
const OTHER_PASSWORD = ['--password-file', '--password-command'];
const FORMAT_BYTES_MAX = 1 << 20;

/**
 * Begins to derive the key of the repository that a command line is about to open, on a thread of
 * its own, while the rest of the program is loaded: 0.15 s that a small backup would wait for. Only
 * where all is known at once: a repository in a directory, a password in the environment. It may
 * always do nothing; what is wrong with any of it is said by the verb itself.
 */
export function startDerivingKey(args: readonly string[]): void {
  try {
    const { password } = environment;
    const path = repositoryPath(args) ?? environment.repository;
    const isPlain = !args.some((arg) => HELP.includes(arg) || isOption(arg, OTHER_PASSWORD));
    if (!password || !path || !isPlain || !VERBS.includes(args[0] ?? '')) return;
    const file = join(directoryOf(path), 'kopia.repository.f');
    const status = statSync(file, { throwIfNoEntry: false });
    if (!status?.isFile() || status.size > FORMAT_BYTES_MAX) return;
    const { keyAlgo, uniqueID } = JSON.parse(readFileSync(file, 'utf8')) as Record<string, unknown>;
    if (typeof keyAlgo !== 'string' || typeof uniqueID !== 'string') return;
    const uniqueId = Buffer.from(uniqueID, 'base64');
    deriveFormatKey(new Secret(password), keyAlgo, uniqueId).catch(() => undefined);
  } catch {
    // Asked for again by the verb, which says what is wrong.
  }
}

const isOption = (arg: string, names: readonly string[]): boolean =>
  names.some((name) => arg === name || arg.startsWith(`${name}=`));

function repositoryPath(args: readonly string[]): string | undefined {
  const at = args.findLastIndex((arg) => isOption(arg, ['--repo']));
  const arg = args[at];
  return arg === '--repo' ? args[at + 1] : arg?.slice('--repo='.length);
}

/** Throws for what is no directory. */
function directoryOf(location: string): string {
  if (location.startsWith('file:')) return fileURLToPath(location);
  if (/^[a-z][a-z0-9+.-]+:|^@/.test(location)) throw new TypeError('not a directory');
  return location;
}
