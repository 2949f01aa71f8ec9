import { fstatSync, writeSync } from 'node:fs';
import { messageOf, systemCode } from '../../base/index.ts';

const STDOUT = 1;

/** The state of stdout in this process. */
const state: { isGuarded: boolean; isClosed: boolean; error: Error | undefined; isFile: boolean } =
  {
    isGuarded: false,
    isClosed: false,
    error: undefined,
    isFile: false,
  };

/**
 * After this call a closed pipe of stdout or stderr ends only the output. `| head` is no error, and
 * a backup continues without a reader. Node would end the process.
 */
export function guardOutput(): void {
  if (state.isGuarded) return;
  state.isGuarded = true;
  process.stdout.on('error', note);
  // The reader is gone.
  process.stderr.on('error', () => undefined);
  try {
    state.isFile = fstatSync(STDOUT).isFile();
  } catch {
    // Without stdout there is no file.
  }
}

function note(error: Error): void {
  state.isClosed = true;
  if (systemCode(error) !== 'EPIPE') state.error ??= error;
}

/** Whether output still has a reader. Loops that only print end when this is false. */
export const isOutputOpen = (): boolean => !state.isClosed;

/** Resolves when more can be written. Drops data without a reader. */
export async function writeOutput(data: string | Uint8Array): Promise<void> {
  if (write(data) || state.isClosed) return;
  await nextOf('drain', 'error');
}

/** Waits for the first of these events of stdout. */
function nextOf(...events: readonly string[]): Promise<void> {
  return new Promise((resolve) => {
    const come = (): void => {
      for (const event of events) process.stdout.off(event, come);
      resolve();
    };
    for (const event of events) process.stdout.on(event, come);
  });
}

/** For small output, without waiting. */
export function printText(text: string): void {
  write(text);
}

function write(data: string | Uint8Array): boolean {
  guardOutput();
  if (state.isClosed) return true;
  if (!state.isFile) return process.stdout.write(data);
  // Node treats a short write as complete, for example on a full disk.
  const bytes = typeof data === 'string' ? Buffer.from(data) : data;
  try {
    for (let done = 0; done < bytes.length;) done += writeSync(STDOUT, bytes, done);
  } catch (error) {
    note(error as Error);
  }
  return true;
}

/** Waits until stdout has all data. Resolves with a sentence if a write failed. */
export async function finishOutput(): Promise<string | undefined> {
  if (!state.isClosed && process.stdout.writableNeedDrain) {
    await nextOf('drain', 'error');
  }
  // An error of the last write arrives as an event in the next turn.
  await new Promise((resolve) => setImmediate(resolve));
  return state.error && `cannot write to stdout: ${messageOf(state.error)}`;
}
