import { createHash } from 'node:crypto';
import { z } from 'zod';
import type { Body } from '../../blob/index.ts';
import { damaged } from '../damaged-error.ts';
import { previousSchema } from './deletion-notes.ts';
import type { StoredBackup } from '../file-schemas.ts';
import type { BackupFile } from '../layout.ts';
import type { Sum } from '../scratch-file.ts';
import { signatureSchema } from './signature.ts';

const sumSchema = z.object({ lengthBytes: z.number(), sha256: z.string() });

/**
 * Our own file in a backup's folder: its files and their allowed checksums. Velero reads only its
 * own names, and would not notice a missing or old file. While a file is being replaced, both the
 * old and the new sum are allowed. A kill between two writes therefore damages nothing.
 */
export const checksumsSchema = z.looseObject({
  version: z.literal(1),
  /** The Backup's state when these were written. See {@link stateOf}. */
  states: z.array(z.string()),
  /** An empty list: the file exists, with any bytes. */
  files: z.record(z.string(), z.array(sumSchema)),
  previous: previousSchema.optional(),
  /** The other files are encrypted in the bucket. */
  encrypted: z.boolean().optional(),
  /** See {@link Signing}. */
  signature: signatureSchema.optional(),
});
export type Checksums = z.infer<typeof checksumsSchema>;

/** The state of a backup. Every program that finishes it changes the state, even Velero. */
export const stateOf = ({ metadata, status = {} }: StoredBackup): string =>
  [metadata.uid ?? '', status.phase ?? '', status.completionTimestamp ?? ''].join(' ');

/** Files that Velero replaces without our sums (pkg/controller/backup_finalizer_controller.go). */
const REWRITTEN: ReadonlySet<BackupFile> = new Set(['metadata', 'contents', 'volumeInfos']);

/** Adds sums of new files to the sums that may still be valid. `undefined`: the file has no sum. */
export function withFiles(
  before: Checksums | undefined,
  files: ReadonlyMap<BackupFile, Sum | undefined>,
  state: string | undefined,
): Checksums {
  const sums: Record<string, Sum[]> = { ...before?.files };
  for (const [file, sum] of files) {
    const known = sums[file] ?? [];
    sums[file] = sum ? [...known.filter(({ sha256 }) => sha256 !== sum.sha256), sum] : [];
  }
  const states = new Set([...(before?.states ?? []), ...(state === undefined ? [] : [state])]);
  return { ...before, version: 1, states: [...states], files: sums };
}

/** The sums of only these files, once they are all put. */
export function settled(
  checksums: Checksums,
  files: ReadonlyMap<BackupFile, Sum | undefined>,
  state: string | undefined,
): Checksums {
  const sums = { ...checksums.files };
  for (const [file, sum] of files) sums[file] = sum ? [sum] : [];
  return { ...checksums, files: sums, states: state === undefined ? checksums.states : [state] };
}

/** Removes sums of files that another program may have replaced: the Backup's state is unknown. */
export function sinceOthers(checksums: Checksums, backup: StoredBackup): Checksums {
  if (checksums.states.includes(stateOf(backup))) return checksums;
  const files = Object.entries(checksums.files).map(
    ([file, sums]) => [file, REWRITTEN.has(file as BackupFile) ? [] : sums] as const,
  );
  return { ...checksums, files: Object.fromEntries(files) };
}

/** The allowed checksums of a backup's files. Files of other programs have none. */
export class ChecksumRules {
  readonly #checksums: Checksums | undefined;

  constructor(checksums: Checksums | undefined, backup: StoredBackup) {
    this.#checksums = checksums && sinceOthers(checksums, backup);
  }

  /** Whether a file was written that should be there. */
  isExpected(file: BackupFile): boolean {
    return this.#checksums !== undefined && Object.hasOwn(this.#checksums.files, file);
  }

  /**
   * Passes the bytes on. Throws `DAMAGED_ARCHIVE` at their end if no checksum matches. The backup
   * may have been finished meanwhile: `reload` returns the current rules.
   */
  async *checked(
    file: BackupFile,
    key: string,
    body: Body,
    reload?: () => Promise<ChecksumRules>,
  ): AsyncGenerator<Uint8Array> {
    if (this.#sumsOf(file).length === 0) {
      yield* body;
      return;
    }
    const hash = createHash('sha256');
    let lengthBytes = 0;
    for await (const piece of body) {
      hash.update(piece);
      lengthBytes += piece.length;
      yield piece;
    }
    const sum = { lengthBytes, sha256: hash.digest('hex') };
    if (this.#takes(file, sum)) return;
    const rules = await reload?.();
    if (rules && rules.#takes(file, sum)) return;
    throw damaged(key, 'it is not the file that was stored: its checksum is wrong');
  }

  #sumsOf(file: BackupFile): readonly Sum[] {
    return this.#checksums?.files[file] ?? [];
  }

  #takes(file: BackupFile, { sha256, lengthBytes }: Sum): boolean {
    const sums = this.#sumsOf(file);
    return (
      sums.length === 0 ||
      sums.some((sum) => sum.sha256 === sha256 && sum.lengthBytes === lengthBytes)
    );
  }
}

export const sumOf = (bytes: Uint8Array): Sum => ({
  lengthBytes: bytes.length,
  sha256: createHash('sha256').update(bytes).digest('hex'),
});
