import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Secret } from '../base/index.ts';
// Imported directly, not through index.ts, which would load the rest of the folders first.
import { environment } from '../config/environment.ts';
import { deriveFormatKey } from '../repository/format/keys.ts';

/** Verbs that always open a repository. */
const VERBS = ['snapshot', 'policy'];
/** Flags that end a command before it opens anything. */
const HELP = ['--help', '-h'];
/** Flags that replace the password of the environment. */
const OTHER_PASSWORD = ['--password-file', '--password-command'];
const FORMAT_BYTES_MAX = 1 << 20;

/**
 * Starts to derive the key of the repository on its own thread, while the rest of the program
 * loads. Saves 0.15 s of a small backup. Works only for a repository in a directory and a password
 * in the environment. Does nothing on any error, because the verb reports it.
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
    // The verb retries and reports the error.
  }
}

const isOption = (arg: string, names: readonly string[]): boolean =>
  names.some((name) => arg === name || arg.startsWith(`${name}=`));

function repositoryPath(args: readonly string[]): string | undefined {
  const at = args.findLastIndex((arg) => isOption(arg, ['--repo']));
  const arg = args[at];
  return arg === '--repo' ? args[at + 1] : arg?.slice('--repo='.length);
}

/** Throws for a location that is not a directory. */
function directoryOf(location: string): string {
  if (location.startsWith('file:')) return fileURLToPath(location);
  if (/^[a-z][a-z0-9+.-]+:|^@/.test(location)) throw new TypeError('not a directory');
  return location;
}
