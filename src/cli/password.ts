import { isUtf8 } from 'node:buffer';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import type { Interface } from 'node:readline';
import { Writable } from 'node:stream';
import { Option } from 'commander';
import { CanceledError, CodedError, messageOf, Secret } from '../base/index.ts';
import { environment } from '../config/index.ts';
import { UsageError } from './usage-error.ts';

/** No password is this long. Our choice. */
const PASSWORD_BYTES_MAX = 64 << 10;
/**
 * How long to wait for output after a password command has exited. A background process, such as an
 * agent, may hold the output open forever. Our choice.
 */
const OUTPUT_MS_MAX = 1000;

/** Sources of a repository's password, besides the environment and a terminal. */
export interface PasswordSource {
  readonly passwordFile?: string | undefined;
  /** Run by `/bin/sh`. Prints the password. */
  readonly passwordCommand?: string | undefined;
}

/** `--password-file`, which may be repeated. */
export const passwordFilesOption = (description: string): Option =>
  new Option('--password-file <file>', `${description}; may be repeated`).argParser(
    (file: string, before: readonly string[] | undefined) => [...(before ?? []), file],
  );

/** The password of an existing repository. Throws `NO_PASSWORD`. */
export async function readPassword(
  { passwordFile: file, passwordCommand }: PasswordSource,
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
  if (passwordCommand !== undefined) return nonEmpty(await outputOf(passwordCommand));
  if (environment.password !== undefined) return nonEmpty(environment.password);
  if (isTerminal()) return nonEmpty(await prompt.ask('Password: '));
  const text =
    'no password: use --password-file, --password-command, LONGSHORE_PASSWORD or a terminal';
  throw new CodedError('NO_PASSWORD', text);
}

/** The output without its last line end. The command can prompt. Throws `NO_PASSWORD`. */
async function outputOf(command: string): Promise<string> {
  // Loaded late, because the module is large and few commands need it. The same holds for readline.
  const { spawn } = await import('node:child_process');
  const child = spawn('/bin/sh', ['-c', command], { stdio: ['inherit', 'pipe', 'inherit'] });
  const ended = once(child, 'close') as Promise<[code: number | null, signal: string | null]>;
  child.once('exit', () => {
    setTimeout(() => child.stdout.destroy(), OUTPUT_MS_MAX).unref();
  });
  const pieces: Buffer[] = [];
  let lengthBytes = 0;
  child.stdout.on('data', (piece: Buffer) => {
    lengthBytes += piece.length;
    if (lengthBytes <= PASSWORD_BYTES_MAX) pieces.push(piece);
  });
  try {
    const [code, signal] = await ended;
    if (code !== 0) throw new Error(signal ? `ended by ${signal}` : `exit code ${code}`);
  } catch (cause) {
    const text = `the password command failed: ${messageOf(cause)}`;
    throw new CodedError('NO_PASSWORD', text, { cause });
  }
  if (lengthBytes <= PASSWORD_BYTES_MAX) return withoutLineEnd(Buffer.concat(pieces));
  throw new CodedError('NO_PASSWORD', 'the password command printed more than 64 KiB');
}

function nonEmpty(text: string): Secret {
  if (text !== '') return new Secret(text);
  throw new CodedError('NO_PASSWORD', 'the password is empty');
}

/** Editors and `echo` end a file with a line end, which is not a part of the password. */
const withoutLineEnd = (bytes: Buffer): string => bytes.toString('utf8').replace(/\r?\n$/, '');

/** Sources of a new password, with their names for the user. */
export interface NewPasswordSource {
  readonly flag: string;
  readonly variable: string;
  readonly file: string | undefined;
  readonly command?: string | undefined;
  readonly value: string | undefined;
}

/**
 * A password for future encryption. The program cannot check it, so a typing error would lock the
 * backups. The terminal asks twice, and refuses text that cannot be typed again.
 */
export class NewPassword {
  readonly #source: NewPasswordSource;

  /** Throws {@link UsageError} at once without a file, command, variable or terminal. */
  constructor(source: NewPasswordSource) {
    this.#source = source;
    const { file, command, value, flag, variable } = source;
    if ([file, command, value].some((each) => each !== undefined) || isTerminal()) return;
    throw new UsageError(`no new password: use ${flag}, ${variable} or a terminal`);
  }

  /** Throws {@link UsageError}. */
  async read(prompt: PasswordPrompt): Promise<Secret> {
    const text = await this.#text(prompt);
    if (text === '') throw new UsageError('the new password is empty');
    // U+FFFD replaces invalid bytes: different files would give the same password.
    if (text.includes('\ufffd')) throw new UsageError('the new password is not valid UTF-8 text');
    return new Secret(text);
  }

  async #text(prompt: PasswordPrompt): Promise<string> {
    const { file, command, value } = this.#source;
    if (file !== undefined) return readNewFile(file);
    if (command !== undefined) return outputOf(command);
    if (value !== undefined) return value;
    const first = await prompt.ask('New password: ');
    // A second prompt would hide that the first answer is empty.
    if (first === '' || first === (await prompt.ask('New password again: '))) return first;
    throw new UsageError('the two passwords do not match: nothing was changed');
  }
}

async function readNewFile(file: string): Promise<string> {
  let bytes: Buffer;
  try {
    bytes = await readFile(file);
  } catch (cause) {
    throw new UsageError(`cannot read the file with the new password: ${messageOf(cause)}`);
  }
  if (!isUtf8(bytes)) throw new UsageError('the new password is not valid UTF-8 text');
  return withoutLineEnd(bytes);
}

const isTerminal = (): boolean => process.stdin.isTTY;

/**
 * Prompts on stderr, so stdout stays clean, and hides the typed text. Use one prompt for all
 * questions of a command: lines typed or pasted ahead wait for their question. Disposing it
 * restores the terminal.
 */
export class PasswordPrompt implements Disposable {
  #lines: Interface | undefined;
  readonly #typed: string[] = [];
  #waiting: { resolve: (line: string) => void; reject: (error: Error) => void } | undefined;
  #isClosed = false;

  /** Throws `CANCELED` on Ctrl-C, and {@link UsageError} at the end of the input. */
  async ask(question: string): Promise<string> {
    // Echo must be off before the question appears.
    await this.#open();
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
      if (this.#isClosed) this.#fail(new UsageError('no password was entered'));
    });
  }

  async #open(): Promise<void> {
    if (this.#lines) return;
    const { createInterface } = await import('node:readline');
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
      // No question is open, so Ctrl-C has its usual effect.
      if (!this.#waiting) process.kill(process.pid, 'SIGINT');
      this.#fail(new CanceledError('user'));
    });
    this.#lines.on('close', () => {
      this.#isClosed = true;
      this.#fail(new UsageError('no password was entered'));
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
