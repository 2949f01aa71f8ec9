import { createInterface } from 'node:readline/promises';
import { CodedError } from '../../base/index.ts';
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
  try {
    const said = await terminal.question(`${printable(question)} [y/N] `, { signal });
    if (/^y(es)?$/i.test(said.trim())) return;
  } finally {
    terminal.close();
  }
  throw new CodedError('NOT_CONFIRMED', 'nothing was deleted');
}
