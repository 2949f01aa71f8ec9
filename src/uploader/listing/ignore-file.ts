import { CodedError, isCode, messageOf, printable } from '../../base/index.ts';
import { type IgnorePattern, parseIgnoreFile } from '../../snapshot/policy/ignore-pattern.ts';
import { openRegular, readStart } from '../file-data/regular-file.ts';

/**
 * Bounds for all ignore files that apply to one directory, including those above. Each entry is
 * matched against all of their rules. Our choice: far above normal use; Kopia has none.
 */
export const IGNORE_BYTES_MAX = 256 << 10;
export const IGNORE_RULES_MAX = 10_000;
/** A rule with several stars counts as this many. Measured: five to twenty times as long. */
const COSTLY_RULE = 10;

/** Remaining room under the bounds. */
export interface IgnoreRoom {
  readonly bytes: number;
  readonly rules: number;
}

export interface IgnoreFile {
  readonly patterns: readonly IgnorePattern[];
  readonly bytes: number;
  /** Number that counts for the bound. */
  readonly rules: number;
}

/**
 * Rules of an ignore file of the volume; undefined if the path is not a regular file or was
 * removed. Messages contain no text of the file, because readers of messages may not be allowed to
 * read it. Throws `BAD_IGNORE_FILE`.
 */
export async function loadIgnoreFile(
  { path, read = (bytesMax) => readRegular(path, bytesMax), shown }: FileToLoad,
  base: string,
  room: IgnoreRoom,
): Promise<IgnoreFile | undefined> {
  try {
    const bytes = await read(room.bytes + 1);
    if (!bytes) return undefined;
    if (bytes.length > room.bytes) {
      throw unusable(
        shown,
        `ignore files for one directory have more than ${IGNORE_BYTES_MAX} bytes`,
      );
    }
    const patterns = parseIgnoreFile(bytes.toString('utf8'), base);
    const rules = patterns.reduce((sum, { isCostly }) => sum + (isCostly ? COSTLY_RULE : 1), 0);
    if (rules > room.rules) {
      const text = `ignore files for one directory have more than ${IGNORE_RULES_MAX} rules; one with several stars counts as ${COSTLY_RULE}`;
      throw unusable(shown, text);
    }
    return { patterns, bytes: bytes.length, rules };
  } catch (cause) {
    if (isCode(cause, 'BAD_IGNORE_FILE')) throw cause;
    if (isCode(cause, 'ENOENT')) return undefined;
    // Without its rules the backup would store the wrong files.
    throw unusable(shown, messageOf(cause), cause);
  }
}

interface FileToLoad {
  readonly path: string | Uint8Array;
  /** Replaces reading the file at the path. */
  readonly read?: ((bytesMax: number) => Promise<Buffer | undefined>) | undefined;
  /** For messages. */
  readonly shown: string;
}

async function readRegular(
  path: string | Uint8Array,
  bytesMax: number,
): Promise<Buffer | undefined> {
  const file = await openRegular(path);
  if (!file) return undefined;
  try {
    return await readStart(file, bytesMax);
  } finally {
    await file.close();
  }
}

function unusable(shown: string, why: string, cause?: unknown): CodedError {
  const text = `the ignore file ${printable(shown)} cannot be used: ${printable(why)}`;
  return new CodedError('BAD_IGNORE_FILE', text, { cause });
}
