import { closeSync, openSync, readSync, statfsSync, unlinkSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  CodedError,
  formatBytes,
  messageOf,
  randomHex,
  systemCode,
  writeAllSync,
  type WriteSome,
} from '../../base/index.ts';
import { fileSource } from './byte-source.ts';
import type { ByteSource } from './index-layout.ts';

export type OpenScratch = () => ScratchFile;

/**
 * A file without a name: it goes away with its descriptor, also after SIGKILL. Close it, or hand it
 * on as a source.
 */
export class ScratchFile {
  readonly #directory: string;
  readonly #descriptor: number;
  readonly #write: WriteSome;

  /** Throws `SCRATCH_FULL`, `SCRATCH_UNUSABLE`. */
  constructor(directory: string = tmpdir(), write: WriteSome = writeSync) {
    this.#directory = directory;
    this.#write = write;
    const path = join(directory, `longshore-scratch-${randomHex(8)}`);
    try {
      this.#descriptor = openSync(path, 'wx+', 0o600);
      unlinkSync(path);
    } catch (cause) {
      throw scratchError(directory, cause);
    }
  }

  /** Writes all bytes. Throws `SCRATCH_FULL`, `SCRATCH_UNUSABLE`. */
  write(bytes: Uint8Array, position: number): void {
    try {
      writeAllSync(this.#descriptor, bytes, position, this.#write);
    } catch (cause) {
      throw scratchError(this.#directory, cause);
    }
  }

  /**
   * Reads at most so many bytes into a buffer and returns how many there were, as `fs.readSync`
   * does.
   */
  read(into: Uint8Array, offset: number, length: number, position: number): number {
    try {
      return readSync(this.#descriptor, into, offset, length, position);
    } catch (cause) {
      throw scratchError(this.#directory, cause);
    }
  }

  /** What was written, to read; the source owns the file from now on. */
  toSource(): ByteSource {
    const source = fileSource(this.#descriptor);
    return {
      ...source,
      // As it is, the system's error would be taken for one of the file whose contents are looked
      // up.
      read: (offset, length) => {
        try {
          return source.read(offset, length);
        } catch (cause) {
          throw scratchError(this.#directory, cause);
        }
      },
    };
  }

  close(): void {
    closeSync(this.#descriptor);
  }
}

/** What the user may still write to the scratch directory. Throws `SCRATCH_UNUSABLE`. */
export function freeScratchBytes(directory: string = tmpdir()): number {
  try {
    const { bavail, bsize } = statfsSync(directory);
    return bavail * bsize;
  } catch (cause) {
    throw scratchError(directory, cause);
  }
}

/**
 * Before long work begins: it would end without a result where the space does not suffice. Throws
 * `SCRATCH_FULL`.
 */
export function assertScratchRoom(neededBytes: number, freeBytes: number): void {
  if (neededBytes <= freeBytes) return;
  const [needed, free] = [formatBytes(neededBytes), formatBytes(freeBytes)];
  const text = `maintenance may need ${needed} in the scratch directory ${tmpdir()}, which has ${free} left: free some space, or set TMPDIR to another directory; nothing was changed`;
  throw new CodedError('SCRATCH_FULL', text, { facts: { neededBytes, freeBytes } });
}

function scratchError(directory: string, cause: unknown): CodedError {
  const isFull = ['ENOSPC', 'EDQUOT'].includes(systemCode(cause) ?? '');
  const text = isFull
    ? `no space left in the scratch directory ${directory}, which holds what does not fit into memory: free some space, or set TMPDIR to another directory`
    : `the scratch directory ${directory} cannot be used: ${messageOf(cause)}; set TMPDIR to another directory`;
  return new CodedError(isFull ? 'SCRATCH_FULL' : 'SCRATCH_UNUSABLE', text, { cause });
}
