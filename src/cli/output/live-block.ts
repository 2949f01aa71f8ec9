import { writeOutput } from './streams.ts';
import { printable } from './terminal.ts';

/** The output for people. */
export interface Terminal {
  readonly rows?: number | undefined;
  readonly columns?: number | undefined;
  /** Resolves when more can be written. */
  readonly write: (text: string) => Promise<void>;
}

/** A terminal that writes to stdout. */
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

/** Lines on a terminal that are redrawn in place, cut to the width of the terminal. */
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
