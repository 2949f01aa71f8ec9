import { createHash, type Hash } from 'node:crypto';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import {
  assert,
  CodedError,
  messageOf,
  nothingWritten,
  randomHex,
  systemCode,
} from '../base/index.ts';
import type { Body } from '../blob/index.ts';

const READ_BYTES = 1 << 20;
const FULL = ['ENOSPC', 'EDQUOT'];

/** Length and hash of a file. */
export interface Sum {
  readonly lengthBytes: number;
  /** SHA-256 in hex. */
  readonly sha256: string;
}

/**
 * A private file on disk without a name, which the system frees when the process ends in any way.
 * Written once, then read as often as needed.
 */
export class ScratchFile implements AsyncDisposable {
  readonly #file: fs.FileHandle;
  readonly #directory: string;
  readonly #hash: Hash = createHash('sha256');
  #lengthBytes = 0;
  #sum: Sum | undefined;

  private constructor(file: fs.FileHandle, directory: string) {
    this.#file = file;
    this.#directory = directory;
  }

  /** Throws `SCRATCH_FAILED`. */
  static async create(directory: string): Promise<ScratchFile> {
    const path = join(directory, `longshore-scratch-${randomHex(8)}`);
    try {
      const file = await fs.open(path, 'wx+', 0o600);
      await fs.unlink(path);
      return new ScratchFile(file, directory);
    } catch (cause) {
      throw failed(directory, cause);
    }
  }

  /** A file with these bytes. If the body fails, the file is closed. */
  static async of(directory: string, body: Body): Promise<ScratchFile> {
    const file = await ScratchFile.create(directory);
    try {
      for await (const piece of body) await file.append(piece);
      file.finish();
      return file;
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  get lengthBytes(): number {
    return this.#lengthBytes;
  }

  /** Calls must not overlap. Throws `SCRATCH_FULL`, `SCRATCH_FAILED`. */
  async append(bytes: Uint8Array): Promise<void> {
    assert(!this.#sum, 'a scratch file that is finished');
    try {
      for (let at = 0; at < bytes.length;) {
        const rest = bytes.length - at;
        const { bytesWritten } = await this.#file.write(bytes, at, rest, this.#lengthBytes + at);
        if (bytesWritten === 0) throw nothingWritten();
        at += bytesWritten;
      }
    } catch (cause) {
      throw failed(this.#directory, cause);
    }
    this.#hash.update(bytes);
    this.#lengthBytes += bytes.length;
  }

  /** Ends the file; no more appends. */
  finish(): Sum {
    this.#sum ??= { lengthBytes: this.#lengthBytes, sha256: this.#hash.digest('hex') };
    return this.#sum;
  }

  /** Reads all bytes or a range. Concurrent readers are allowed. */
  async *read(offset = 0, lengthBytes = this.#lengthBytes - offset): AsyncGenerator<Uint8Array> {
    for (let at = offset, end = offset + lengthBytes; at < end;) {
      const buffer = Buffer.allocUnsafeSlow(Math.min(READ_BYTES, end - at));
      const { bytesRead } = await this.#file
        .read(buffer, 0, buffer.length, at)
        .catch((cause: unknown) => {
          throw failed(this.#directory, cause);
        });
      assert(bytesRead > 0, 'a scratch file is shorter than what was written');
      at += bytesRead;
      yield buffer.subarray(0, bytesRead);
    }
  }

  async close(): Promise<void> {
    await this.#file.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

function failed(directory: string, cause: unknown): CodedError {
  if (FULL.includes(systemCode(cause) ?? '')) {
    const text = `no space left in ${directory} for what a backup is made of before it is stored: give the server a larger scratch volume`;
    return new CodedError('SCRATCH_FULL', text, { cause });
  }
  return new CodedError('SCRATCH_FAILED', `cannot use ${directory}: ${messageOf(cause)}`, {
    cause,
  });
}
