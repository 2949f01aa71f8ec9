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

/** An unnamed file, deleted with its descriptor, even by SIGKILL. Close it or pass it on. */
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

  /** Reads up to `length` bytes into a buffer and returns the number read, like `fs.readSync`. */
  read(into: Uint8Array, offset: number, length: number, position: number): number {
    try {
      return readSync(this.#descriptor, into, offset, length, position);
    } catch (cause) {
      throw scratchError(this.#directory, cause);
    }
  }

  /** The written bytes as a source, which then owns the file. */
  toSource(): ByteSource {
    const source = fileSource(this.#descriptor);
    return {
      ...source,
      // Wrap the system error. Otherwise it would look like an error of the volume's file.
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

/** Free bytes for this user in the scratch directory. Throws `SCRATCH_UNUSABLE`. */
export function freeScratchBytes(directory: string = tmpdir()): number {
  try {
    const { bavail, bsize } = statfsSync(directory);
    return bavail * bsize;
  } catch (cause) {
    throw scratchError(directory, cause);
  }
}

/** Checks the scratch space before long work. Throws `SCRATCH_FULL`. */
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
