import { type ChildProcess, spawn, spawnSync } from 'node:child_process';

/** `script` of util-linux runs a command on its own pseudo-terminal. */
export const hasTerminal = (): boolean => spawnSync('script', ['--version']).status === 0;

const quote = (word: string): string => `'${word.replaceAll("'", `'\\''`)}'`;

/** A command on a pseudo-terminal. Tests can wait for its output and type keys. */
export class Terminal {
  readonly #child: ChildProcess;
  readonly #exit: Promise<number | null>;
  #shown = '';
  #seen = 0;
  #onChange: () => void = () => undefined;

  constructor(command: readonly string[], env: NodeJS.ProcessEnv) {
    const line = command.map(quote).join(' ');
    this.#child = spawn('script', ['-qefc', line, '/dev/null'], { env });
    this.#child.stdout?.on('data', (data: Buffer) => {
      this.#shown += data.toString();
      this.#onChange();
    });
    this.#exit = new Promise((resolve) => {
      this.#child.once('close', (code) => {
        resolve(code);
        this.#onChange();
      });
    });
  }

  get shown(): string {
    return this.#shown;
  }

  /**
   * Waits for one of these texts after the last match, and returns it. Throws with the output if
   * the command ends first.
   */
  async see(...texts: readonly string[]): Promise<string> {
    let ended = false;
    void this.#exit.then(() => {
      ended = true;
    });
    for (;;) {
      for (const text of texts) {
        const at = this.#shown.indexOf(text, this.#seen);
        if (at < 0) continue;
        this.#seen = at + text.length;
        return text;
      }
      await Promise.resolve();
      if (ended)
        throw new Error(
          `the command ended without "${texts.join('" or "')}"; it showed: ${this.#shown}`,
        );
      await new Promise<void>((resolve) => {
        this.#onChange = resolve;
      });
    }
  }

  type(keys: string): void {
    this.#child.stdin?.write(keys);
  }

  /** The exit code. This does not end the command in the terminal. */
  exit(): Promise<number | null> {
    return this.#exit;
  }

  [Symbol.dispose](): void {
    this.#child.kill('SIGKILL');
  }
}
