import { vi } from 'vitest';
import { runCommandLine } from '../../src/cli/run.ts';

export interface Ran {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

/** Runs a command line in this process, which is faster. Calls must not overlap. */
export async function runHere(...words: readonly string[]): Promise<Ran> {
  const written = { out: '', err: '' };
  const catchInto = (name: 'out' | 'err') => (data: string | Uint8Array) => {
    written[name] += typeof data === 'string' ? data : Buffer.from(data).toString();
    return true;
  };
  const spies = [
    vi.spyOn(process.stdout, 'write').mockImplementation(catchInto('out')),
    vi.spyOn(process.stderr, 'write').mockImplementation(catchInto('err')),
  ];
  try {
    const code = await runCommandLine(words);
    return { code, ...written };
  } finally {
    process.exitCode = 0;
    for (const spy of spies) spy.mockRestore();
  }
}
