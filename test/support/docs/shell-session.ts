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

/** For one command, on a machine with many times its usual load. */
const COMMAND_MS = 300_000;
/** Time for a command to end after Ctrl-C. */
const END_MS = 60_000;
/** Printed after a command on a terminal, before its exit code. */
const CODE = '[exit code ';

/**
 * The shell of a user who types the commands of a page. Variables and functions stay. A failed
 * command ends the shell, and throws an `Error` with its output.
 */
export class ShellSession implements AsyncDisposable {
  readonly #shell: ChildProcess;
  readonly #directory: string;
  readonly #env: NodeJS.ProcessEnv;
  readonly #cwd: string;
  #count = 0;
  #onAnswer: (isDone: boolean) => void = () => undefined;

  /** `directory`: for the output of commands. */
  constructor(options: { directory: string; cwd: string; env: NodeJS.ProcessEnv }) {
    this.#directory = options.directory;
    this.#env = options.env;
    this.#cwd = options.cwd;
    fs.mkdirSync(this.#directory, { recursive: true });
    this.#shell = spawn('bash', ['--noprofile', '--norc'], {
      cwd: options.cwd,
      env: options.env,
      detached: true,
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
    // The last command is in no condition, so a failure in the file ends the shell.
    this.#input.write(`. ${script} > ${out} 2> ${err} < /dev/null 3>&-; echo done >&3\n`);
    const isDone = await Promise.race([answer, sleep(COMMAND_MS, undefined, { ref: false })]);
    const said = { out: fs.readFileSync(out, 'utf8'), err: fs.readFileSync(err, 'utf8') };
    if (isDone === true) return said;
    const how = isDone === false ? 'failed' : `did not end in ${COMMAND_MS / 1000} s`;
    throw new Error(`it ${how}; it printed:\n${said.out}${said.err}`);
  }

  /** Runs a command that asks, on a terminal. */
  async answer(text: string, question: string, keys: string): Promise<Said> {
    // The shell stays until its end was seen: `script` may drop the last output before its exit.
    const script = `cd ${this.#cwd}\n${text}\necho "${CODE}$?]"; read -rs`;
    using terminal = new Terminal(['bash', '-c', script], this.#env);
    const asked = terminal.see(question, CODE);
    const what = `it did not ask "${question}"`;
    const isAsked = (await within(COMMAND_MS, terminal, what, asked)) === question;
    if (isAsked) {
      terminal.type(keys);
      await within(COMMAND_MS, terminal, 'it did not end', terminal.see(CODE));
    }
    await within(END_MS, terminal, 'it did not end', terminal.see(']'));
    terminal.type('\n');
    await within(END_MS, terminal, 'its shell did not end', terminal.exit());
    const [out = '', rest = ''] = terminal.shown.split(CODE);
    const code = Number.parseInt(rest, 10);
    if (!isAsked) throw new Error(`it ended without "${question}"; it showed:\n${out}`);
    if (code !== 0) throw new Error(`it ended with ${code}; it showed:\n${out}`);
    return { out, err: '' };
  }

  /**
   * Runs a command until it is stopped, on a terminal. Waits for the wanted output and for
   * `meanwhile`, then types Ctrl-C and waits for the end. The environment is that of the session's
   * start.
   */
  async stop(text: string, wanted: string, meanwhile?: () => Promise<void>): Promise<Said> {
    // Tests in the background ignore Ctrl-C, and their children would inherit that.
    const script = `cd ${this.#cwd}\nexec ${text}`;
    using terminal = new Terminal(['env', '--default-signal', 'bash', '-c', script], this.#env);
    await within(COMMAND_MS, terminal, `it did not show "${wanted}"`, terminal.see(wanted));
    await meanwhile?.();
    terminal.type('\x03');
    await within(END_MS, terminal, 'it did not end after Ctrl-C', terminal.exit());
    return { out: terminal.shown, err: '' };
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
    // Includes its child processes.
    process.kill(-pid, 'SIGKILL');
    await ended;
  }
}

/** Throws with the terminal's output if the task takes longer. */
async function within<T>(
  ms: number,
  terminal: Terminal,
  what: string,
  task: Promise<T>,
): Promise<T> {
  const late = Symbol(what);
  const first = await Promise.race([task, sleep(ms, late, { ref: false })]);
  if (first === late) throw new Error(`${what}; it showed:\n${terminal.shown}`);
  return first;
}
