import * as fs from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { CodedError } from '../../base/index.ts';

/** Where the bytes of an object lie. */
export interface SpoolPlace {
  readonly at: number;
  readonly length: number;
}

export interface SpoolOptions {
  /** A directory; without it the system's for temporary files. */
  readonly directory?: string | undefined;
  /** It never has more. */
  readonly bytesMax: number;
}

/** What is left free for others on the same file system. Our choice. */
const SHARE_OF_FREE = 0.5;

/**
 * Objects that are waiting for their turn, in one file that has no name: when the process ends,
 * however that happens, the file is gone. How much may go in is decided when it is opened, from
 * what is free then; what does not fit is not kept, and is asked for again later.
 */
export class Spool implements AsyncDisposable {
  readonly #file: fs.FileHandle;
  readonly bytesMax: number;
  #bytes = 0;

  private constructor(file: fs.FileHandle, bytesMax: number) {
    this.#file = file;
    this.bytesMax = bytesMax;
  }

  /** Throws the system's error where no file can be made. */
  static async open({ directory = tmpdir(), bytesMax }: SpoolOptions): Promise<Spool> {
    const folder = await fs.mkdtemp(join(directory, 'longshore-items-'));
    try {
      const file = await fs.open(join(folder, 'items'), 'wx+', 0o600);
      try {
        const { bavail, bsize } = await fs.statfs(folder);
        return new Spool(file, Math.min(bytesMax, Math.floor(bavail * bsize * SHARE_OF_FREE)));
      } catch (error) {
        await file.close();
        throw error;
      }
    } finally {
      await fs.rm(folder, { recursive: true, force: true });
    }
  }

  get bytes(): number {
    return this.#bytes;
  }

  /**
   * Keeps the bytes of several objects, in one write; undefined where they do not fit. Several
   * calls may be under way at once.
   */
  async add(objects: readonly Buffer[]): Promise<SpoolPlace[] | undefined> {
    const bytes = Buffer.concat(objects);
    if (this.#bytes + bytes.length > this.bytesMax) return undefined;
    // Taken before anything is waited for, so that no two share a place.
    let at = this.#bytes;
    this.#bytes += bytes.length;
    const places = objects.map(({ length }) => {
      const place = { at, length };
      at += length;
      return place;
    });
    let written = 0;
    while (written < bytes.length) {
      const from = (places[0]?.at ?? 0) + written;
      try {
        const { bytesWritten } = await this.#file.write(
          bytes,
          written,
          bytes.length - written,
          from,
        );
        written += bytesWritten;
      } catch {
        // Full meanwhile: as if it had not fitted. The place stays empty.
        return undefined;
      }
    }
    return places;
  }

  /** Throws `SPOOL_DAMAGED` where less is there than was kept. */
  async read({ at, length }: SpoolPlace): Promise<Buffer> {
    const bytes = Buffer.allocUnsafe(length);
    let read = 0;
    while (read < length) {
      const { bytesRead } = await this.#file.read(bytes, read, length - read, at + read);
      if (bytesRead === 0) {
        throw new CodedError(
          'SPOOL_DAMAGED',
          'the file with the listed objects has become shorter',
        );
      }
      read += bytesRead;
    }
    return bytes;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file.close();
  }
}
