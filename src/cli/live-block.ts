import { writeOutput } from './output.ts';
import { printable } from './terminal.ts';

/** Where lines for people go. */
export interface Terminal {
  readonly rows?: number | undefined;
  readonly columns?: number | undefined;
  /** Resolves when more can be written. */
  readonly write: (text: string) => Promise<void>;
}

/** What stdout is written to. */
export const stdoutTerminal: Terminal = {
  get rows() {
    return process.stdout.rows || undefined;
  },
  get columns() {
    return process.stdout.columns || undefined;
  },
  write: writeOutput,
};

const COLUMNS_MIN = 20;

/**
 * Lines on a terminal that are drawn anew in their own place, when they have changed. None is
 * longer than the terminal is wide.
 */
export class LiveBlock {
  readonly #terminal: Terminal;
  #drawn: string | undefined;
  #drawnLines = 0;

  constructor(terminal: Terminal) {
    this.#terminal = terminal;
  }

  async draw(lines: readonly string[]): Promise<void> {
    const { columns = 80, write } = this.#terminal;
    const width = Math.max(COLUMNS_MIN, columns - 1);
    const text = lines.map((line) => `${printable(line).slice(0, width)}\n`).join('');
    if (text === this.#drawn) return;
    await write(`${this.#erase()}${text}`);
    this.#drawn = text;
    this.#drawnLines = lines.length;
  }

  #erase(): string {
    return this.#drawnLines === 0 ? '' : `\u001b[${this.#drawnLines}A\u001b[J`;
  }
}
