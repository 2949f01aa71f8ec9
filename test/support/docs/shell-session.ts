import { type ChildProcess, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { Terminal } from '../terminal.ts';

export interface Said {
  readonly out: string;
  readonly err: string;
}

const COMMAND_MS = 120_000;
/** Time for a command to end after Ctrl-C. */
const END_MS = 20_000;

/**
 * The shell of somebody who types what a page says, one command after the other: variables and functions stay. A command that fails
 * ends it, with an `Error` that says what it printed.
 */
export class ShellSession implements AsyncDisposable {
  readonly #shell: ChildProcess;
  readonly #directory: string;
  readonly #env: NodeJS.ProcessEnv;
  readonly #cwd: string;
  #count = 0;
  #onAnswer: (isDone: boolean) => void = () => undefined;

  /** `directory`: for what commands print. */
  constructor(options: { directory: string; cwd: string; env: NodeJS.ProcessEnv }) {
    this.#directory = options.directory;
    this.#env = options.env;
    this.#cwd = options.cwd;
    fs.mkdirSync(this.#directory, { recursive: true });
    this.#shell = spawn('bash', ['--noprofile', '--norc'], {
      ...{ cwd: options.cwd, env: options.env, detached: true },
      stdio: ['pipe', 'inherit', 'inherit', 'pipe'],
    });
    const answers = this.#shell.stdio[3] as Readable;
    answers.on('data', () => this.#onAnswer(true));
    answers.on('close', () => this.#onAnswer(false));
    this.#input.write('set -eEuo pipefail\n');
  }

  get #input(): Writable {
    return this.#shell.stdio[0] as Writable;
  }

  async run(text: string): Promise<Said> {
    const { script, out, err } = this.#filesOf(text);
    const answer = new Promise<boolean>((resolve) => {
      this.#onAnswer = resolve;
    });
    // The last command of the shell is not in a condition: what fails in the file ends the shell.
    this.#input.write(`. ${script} > ${out} 2> ${err} < /dev/null 3>&-; echo done >&3\n`);
    const isDone = await Promise.race([answer, sleep(COMMAND_MS, undefined, { ref: false })]);
    const said = { out: fs.readFileSync(out, 'utf8'), err: fs.readFileSync(err, 'utf8') };
    if (isDone === true) return said;
    const how = isDone === false ? 'failed' : `did not end in ${COMMAND_MS / 1000} s`;
    throw new Error(`it ${how}; it printed:\n${said.out}${said.err}`);
  }

  /** Runs a command that asks, on a terminal. */
  async answer(text: string, question: string, keys: string): Promise<Said> {
    using terminal = new Terminal(['bash', '-c', `cd ${this.#cwd}\n${text}`], this.#env);
    await terminal.see(question);
    terminal.type(keys);
    const code = await terminal.exit();
    if (code !== 0) throw new Error(`it ended with ${code}; it showed:\n${terminal.shown}`);
    return { out: terminal.shown, err: '' };
  }

  /**
   * Runs a command that goes on until it is stopped: waits until it has printed what is wanted, and until `meanwhile` is over, then
   * stops it as Ctrl-C does. It has the environment of the session's beginning.
   */
  async stop(text: string, wanted: RegExp, meanwhile?: () => Promise<void>): Promise<Said> {
    const child = spawn('bash', ['-c', `exec ${text}`], {
      ...{ cwd: this.#cwd, env: this.#env, stdio: ['ignore', 'pipe', 'pipe'] },
    });
    let printed = '';
    const add = (part: Buffer): void => {
      printed += part.toString();
    };
    child.stdout.on('data', add);
    child.stderr.on('data', add);
    const ended = new Promise<number | null>((resolve) => child.once('close', resolve));
    try {
      const end = performance.now() + COMMAND_MS;
      while (!wanted.test(printed)) {
        if (child.exitCode !== null || performance.now() > end) {
          throw new Error(`it did not print ${wanted}; it printed:\n${printed}`);
        }
        await sleep(50);
      }
      await meanwhile?.();
    } finally {
      child.kill('SIGINT');
      await Promise.race([ended, sleep(END_MS, undefined, { ref: false })]);
      child.kill('SIGKILL');
      await ended;
    }
    return { out: printed, err: '' };
  }

  #filesOf(text: string): { script: string; out: string; err: string } {
    const name = join(this.#directory, String(++this.#count).padStart(3, '0'));
    const files = { script: `${name}.sh`, out: `${name}.out`, err: `${name}.err` };
    fs.writeFileSync(files.script, `${text}\n`);
    fs.writeFileSync(files.out, '');
    fs.writeFileSync(files.err, '');
    return files;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const { pid = 0, exitCode, signalCode } = this.#shell;
    if (exitCode !== null || signalCode !== null) return;
    const ended = new Promise((resolve) => this.#shell.once('close', resolve));
    // With what it has left behind.
    process.kill(-pid, 'SIGKILL');
    await ended;
  }
}
