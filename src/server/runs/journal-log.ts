import { promisify } from 'node:util';
import { gzip as gzipWithCallback } from 'node:zlib';
import { ScratchFile } from '../../archive/index.ts';

const gzip = promisify(gzipWithCallback);
const NOTHING = Buffer.alloc(0);

/**
 * A member of a gzip file, or no bytes at all for no text: members behind one another are a file,
 * too.
 */
export const gzipMember = async (text: string | Uint8Array): Promise<Buffer> =>
  text.length === 0 ? NOTHING : gzip(text);

/**
 * The log of a run: on scratch space as far as it is in segments of its journal, and the lines that
 * are in none yet.
 */
export class JournalLog {
  readonly #file: ScratchFile;
  #lines: string[] = [];
  #isFinished = false;

  private constructor(file: ScratchFile) {
    this.#file = file;
  }

  /** Throws `SCRATCH_FULL`. */
  static async create(directory: string): Promise<JournalLog> {
    return new JournalLog(await ScratchFile.create(directory));
  }

  /** A line with its end. */
  add(line: string): void {
    this.#lines.push(line);
  }

  /** The lines that are in no segment, which are the caller's from here on. */
  take(): string[] {
    const lines = this.#lines;
    this.#lines = [];
    return lines;
  }

  /** Their segment could not be stored: the log of a run that fails has them all the same. */
  giveBack(lines: readonly string[]): void {
    this.#lines.unshift(...lines);
  }

  /** Compressed lines of a segment that is stored. Throws `SCRATCH_FULL`. */
  async append(member: Uint8Array): Promise<void> {
    if (member.length > 0) await this.#file.append(member);
  }

  /**
   * The file, whole, with the lines that are in no segment. It is closed with the log. May be
   * called again.
   */
  async finish(): Promise<ScratchFile> {
    if (this.#isFinished) return this.#file;
    await this.append(await gzipMember(this.take().join('')));
    // An empty file is no gzip file.
    if (this.#file.lengthBytes === 0) await this.#file.append(await gzip(''));
    this.#isFinished = true;
    this.#file.finish();
    return this.#file;
  }

  close(): Promise<void> {
    return this.#file.close();
  }
}
