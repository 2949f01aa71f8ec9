import { isUtf8 } from 'node:buffer';
import { readFile } from 'node:fs/promises';
import { createInterface, type Interface } from 'node:readline';
import { Writable } from 'node:stream';
import { CanceledError, CodedError, messageOf, Secret } from '../base/index.ts';
import { environment } from '../config/index.ts';
import { UsageError } from './usage-error.ts';

/** The password of a repository that exists: from a file, the environment, or a terminal. Throws `NO_PASSWORD`. */
export async function readPassword(
  file: string | undefined,
  prompt: PasswordPrompt,
): Promise<Secret> {
  if (file !== undefined) {
    try {
      return nonEmpty(withoutLineEnd(await readFile(file)));
    } catch (cause) {
      if (cause instanceof CodedError) throw cause;
      throw new CodedError('NO_PASSWORD', `cannot read the password file: ${messageOf(cause)}`, {
        cause,
      });
    }
  }
  if (environment.password !== undefined) return nonEmpty(environment.password);
  if (isTerminal()) return nonEmpty(await prompt.ask('Password: '));
  const text = 'no password: use --password-file, LONGSHORE_PASSWORD or a terminal';
  throw new CodedError('NO_PASSWORD', text);
}

function nonEmpty(text: string): Secret {
  if (text !== '') return new Secret(text);
  throw new CodedError('NO_PASSWORD', 'the password is empty');
}

/** Editors and `echo` end a file with one line end, which nobody means as a part of the password. */
const withoutLineEnd = (bytes: Buffer): string => bytes.toString('utf8').replace(/\r?\n$/, '');

/** Where a new password may come from, by the names that the user knows. */
export interface NewPasswordSource {
  readonly flag: string;
  readonly variable: string;
  readonly file: string | undefined;
  readonly value: string | undefined;
}

/**
 * A password that something will be sealed with from now on: nobody can check it, so a typing error locks the
 * backups away. It is asked for twice, and what cannot be typed again is refused.
 */
export class NewPassword {
  readonly #source: NewPasswordSource;

  /** Throws {@link UsageError} at once when there is neither file, variable nor terminal. */
  constructor(source: NewPasswordSource) {
    this.#source = source;
    const { file, value, flag, variable } = source;
    if (file !== undefined || value !== undefined || isTerminal()) return;
    throw new UsageError(`no new password: use ${flag}, ${variable} or a terminal`);
  }

  /** Throws {@link UsageError}. */
  async read(prompt: PasswordPrompt): Promise<Secret> {
    const text = await this.#text(prompt);
    if (text === '') throw new UsageError('the new password is empty');
    // What is left of bytes that are no text: different files would make the same password.
    if (text.includes('\ufffd')) throw new UsageError('the new password is not UTF-8 text');
    return new Secret(text);
  }

  async #text(prompt: PasswordPrompt): Promise<string> {
    const { file, value } = this.#source;
    if (file !== undefined) return readNewFile(file);
    if (value !== undefined) return value;
    const first = await prompt.ask('New password: ');
    // Asking again would hide that it is empty.
    if (first === '' || first === (await prompt.ask('New password again: '))) return first;
    throw new UsageError('the two passwords differ: nothing was changed');
  }
}

async function readNewFile(file: string): Promise<string> {
  let bytes: Buffer;
  try {
    bytes = await readFile(file);
  } catch (cause) {
    throw new UsageError(`cannot read the file with the new password: ${messageOf(cause)}`);
  }
  if (!isUtf8(bytes)) throw new UsageError('the new password is not UTF-8 text');
  return withoutLineEnd(bytes);
}

const isTerminal = (): boolean => process.stdin.isTTY;

/**
 * Asks on stderr, so that stdout stays clean; what is typed is not shown. All questions of a command go to one of
 * these: lines that are typed or pasted ahead wait for their question. The terminal is as before when it is disposed.
 */
export class PasswordPrompt implements Disposable {
  #lines: Interface | undefined;
  readonly #typed: string[] = [];
  #waiting: { resolve: (line: string) => void; reject: (error: Error) => void } | undefined;
  #isClosed = false;

  /** Throws `CANCELED` on Ctrl-C, {@link UsageError} at the end of the input. */
  async ask(question: string): Promise<string> {
    // The terminal must not show keys any more when the question is there to be answered.
    this.#open();
    process.stderr.write(question);
    try {
      return this.#typed.shift() ?? (await this.#next());
    } finally {
      process.stderr.write('\n');
    }
  }

  #next(): Promise<string> {
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject };
      if (this.#isClosed) this.#fail(new UsageError('no password was typed'));
    });
  }

  #open(): void {
    if (this.#lines) return;
    const output = new Writable({
      write: (_chunk, _encoding, callback) => {
        callback();
      },
    });
    const options = { input: process.stdin, output, terminal: true, historySize: 0 };
    this.#lines = createInterface(options);
    this.#lines.on('line', (line) => {
      const waiting = this.#waiting;
      this.#waiting = undefined;
      if (waiting) waiting.resolve(line);
      else this.#typed.push(line);
    });
    this.#lines.on('SIGINT', () => {
      // Nobody asks just now: what a terminal does otherwise.
      if (!this.#waiting) process.kill(process.pid, 'SIGINT');
      this.#fail(new CanceledError('user'));
    });
    this.#lines.on('close', () => {
      this.#isClosed = true;
      this.#fail(new UsageError('no password was typed'));
    });
  }

  #fail(error: Error): void {
    this.#waiting?.reject(error);
    this.#waiting = undefined;
  }

  [Symbol.dispose](): void {
    this.#lines?.close();
  }
}
