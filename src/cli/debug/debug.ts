import { createWriteStream, rmSync, statSync } from 'node:fs';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGzip } from 'node:zlib';
import { writeTar, type NewTarEntry } from '../../archive/index.ts';
import { CodedError, formatBytes, systemCode, toDate, unixSeconds } from '../../base/index.ts';
import { countOf } from '../output/numbers.ts';
import { type ClusterFlags, clusterOf } from '../cluster.ts';
import { interruptSignal } from '../context.ts';
import { printable, printLine } from '../output/terminal.ts';
import { VERSION } from '../version.ts';
import { bundleOf } from './bundle.ts';

export interface DebugFlags extends ClusterFlags {
  outputFile?: string;
}

/** Writes the bundle and prints its path. Throws `BUNDLE_EXISTS` and `NOTHING_COLLECTED`. */
export async function writeBundle(flags: DebugFlags): Promise<void> {
  const { client, namespace } = clusterOf(flags, 'longshore-debug');
  const interrupt = interruptSignal();
  const stamp = toDate(client.clock.nowNs()).toISOString().slice(0, 19).replaceAll(/[-:]/g, '');
  const file = flags.outputFile ?? `longshore-debug-${stamp.replace('T', '-')}.tar.gz`;
  const problems: string[] = [];
  let files = 0;
  let isOurs = false;
  const entries = async function* (): AsyncGenerator<NewTarEntry> {
    const about = { client, namespace, version: VERSION, signal: interrupt.signal };
    for await (const entry of bundleOf({ ...about, onProblem: (text) => problems.push(text) })) {
      files++;
      yield entry;
    }
    if (problems.length === 0) return;
    const bytes = Buffer.from(`${problems.join('\n')}\n`);
    const mtime = unixSeconds(client.clock.nowNs());
    yield { path: 'bundle/problems.txt', bytes, mtime, mode: 0o644 };
  };
  // Readable by this user only, although secrets are hidden.
  const target = createWriteStream(file, { flags: 'wx', mode: 0o600 });
  target.on('open', () => (isOurs = true));
  try {
    await pipeline(Readable.from(writeTar(entries())), createGzip(), target);
    // The only file holds the versions of this program.
    if (files <= 1) {
      const text = `nothing could be read of namespace ${namespace} of ${client.server}: ${problems[0] ?? 'it is empty'}`;
      throw new CodedError('NOTHING_COLLECTED', text);
    }
  } catch (error) {
    if (isOurs) rmSync(file, { force: true });
    if (systemCode(error) !== 'EEXIST') throw error;
    const text = `${file} is there already: remove it, or name another one with --output-file`;
    throw new CodedError('BUNDLE_EXISTS', text, { cause: error });
  } finally {
    interrupt.dispose();
    client.close();
  }
  for (const problem of problems) process.stderr.write(`longshore: ${printable(problem)}\n`);
  printLine(`${file}: ${countOf(files, 'files')}, ${formatBytes(statSync(file).size)}`);
}
