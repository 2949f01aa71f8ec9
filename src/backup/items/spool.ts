import * as fs from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { CodedError } from '../../base/index.ts';

/** Position of an object's bytes. */
export interface SpoolPlace {
  readonly at: number;
  readonly length: number;
}

export interface SpoolOptions {
  /** Default: the system's directory for temporary files. */
  readonly directory?: string | undefined;
  /** Upper limit of the file's size. */
  readonly bytesMax: number;
}

/** Share of the free space that the spool may use; other programs need the rest. Our choice. */
const SHARE_OF_FREE = 0.5;

/**
 * Holds listed objects in one unlinked file, which vanishes when the process ends in any way. The
 * size limit is fixed when the file is opened, from the free space. An object that does not fit is
 * read again later.
 */
export class Spool implements AsyncDisposable {
  readonly #file: fs.FileHandle;
  readonly bytesMax: number;
  #bytes = 0;

  private constructor(file: fs.FileHandle, bytesMax: number) {
    this.#file = file;
    this.bytesMax = bytesMax;
  }

  /** Throws the system's error if the file cannot be created. */
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

  /** Stores objects in one write; undefined if they do not fit. Calls may be concurrent. */
  async add(objects: readonly Buffer[]): Promise<SpoolPlace[] | undefined> {
    const bytes = Buffer.concat(objects);
    if (this.#bytes + bytes.length > this.bytesMax) return undefined;
    // Reserve the space before the first await, so that no two calls share it.
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
        // The disk is full: treat the objects as not fitting. The reserved space stays unused.
        return undefined;
      }
    }
    return places;
  }

  /** Throws `SPOOL_DAMAGED` if the file is shorter than expected. */
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
