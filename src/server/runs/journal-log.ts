import { promisify } from 'node:util';
import { gzip as gzipWithCallback } from 'node:zlib';
import { ScratchFile } from '../../archive/index.ts';

const gzip = promisify(gzipWithCallback);
const NOTHING = Buffer.alloc(0);

/** A gzip member, or no bytes for an empty text. Members can be concatenated. */
export const gzipMember = async (text: string | Uint8Array): Promise<Buffer> =>
  text.length === 0 ? NOTHING : gzip(text);

/** The log of a run: stored segments on scratch space, newer lines in memory. */
export class JournalLog implements AsyncDisposable {
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

  /** `line` includes its line break. */
  add(line: string): void {
    this.#lines.push(line);
  }

  /** Removes and returns the lines that are in no segment. */
  take(): string[] {
    const lines = this.#lines;
    this.#lines = [];
    return lines;
  }

  /** Puts lines back whose segment could not be stored, for the log of the failed run. */
  giveBack(lines: readonly string[]): void {
    this.#lines.unshift(...lines);
  }

  /** Appends the compressed lines of a stored segment. Throws `SCRATCH_FULL`. */
  async append(member: Uint8Array): Promise<void> {
    if (member.length > 0) await this.#file.append(member);
  }

  /** The complete file, until `close`. May be repeated. */
  async finish(): Promise<ScratchFile> {
    if (this.#isFinished) return this.#file;
    await this.append(await gzipMember(this.take().join('')));
    // A file without bytes is not a gzip file.
    if (this.#file.lengthBytes === 0) await this.#file.append(await gzip(''));
    this.#isFinished = true;
    this.#file.finish();
    return this.#file;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#file.close();
  }
}
