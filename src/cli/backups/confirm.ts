import { createInterface } from 'node:readline/promises';
import { CodedError, isCanceled } from '../../base/index.ts';
import { printable } from '../terminal.ts';
import { UsageError } from '../usage-error.ts';

/** Asks on the terminal. Throws {@link UsageError} where nobody can be asked, `NOT_CONFIRMED` without a yes. */
export async function confirmed(
  question: string,
  { confirm }: { confirm?: boolean },
  signal: AbortSignal,
): Promise<void> {
  if (confirm === true) return;
  if (!process.stdin.isTTY) throw new UsageError('give --confirm where nobody can be asked');
  const terminal = createInterface({ input: process.stdin, output: process.stderr });
  // The end of the input is no answer, and no answer comes after it.
  const closed = new Promise<string>((resolve) => {
    terminal.once('close', () => {
      // Ctrl-C closes it as well, and says so afterwards.
      setImmediate(resolve, '');
    });
  });
  try {
    const asked = terminal.question(`${printable(question)} [y/N] `, { signal });
    const said = await Promise.race([asked, closed]);
    if (/^y(es)?$/i.test(said.trim())) return;
  } catch (error) {
    if (!isCanceled(error)) throw error;
    process.stderr.write('\n');
    throw new CodedError('CANCELED', 'nothing was deleted', { cause: error });
  } finally {
    terminal.close();
  }
  throw new CodedError('NOT_CONFIRMED', 'nothing was deleted');
}
