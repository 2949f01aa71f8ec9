import { averageRate, describeDamage, describeMovements, readStatus } from '../../agent/index.ts';
import { stringify } from 'yaml';
import { type ClusterFlags, clusterOf } from '../cluster.ts';
import { watchStatus } from './watch.ts';
import { cellsOf, documentOf, HEADER, WIDE_HEADER, wideCellsOf } from '../output/progress-rows.ts';
import { printText } from '../output/streams.ts';
import { printable, printJson, printTable } from '../output/terminal.ts';
import { UsageError } from '../usage-error.ts';

export interface StatusFlags extends ClusterFlags {
  dataMovers?: string;
  agentSelector?: string;
  daemonset?: string;
  all?: boolean;
  json?: boolean;
  output?: 'json' | 'yaml' | 'wide';
  watch?: boolean;
}

/** Prints the CRs that move volumes, with their wait reasons. */
export async function showStatus(flags: StatusFlags): Promise<void> {
  const output = flags.output ?? (flags.json === true ? 'json' : undefined);
  if (flags.json === true && output !== 'json') {
    throw new UsageError(`--json and -o ${flags.output ?? ''} contradict each other`);
  }
  const { client, namespace } = clusterOf(flags);
  const { dataMovers, agentSelector, daemonset: daemonSet } = flags;
  const query = { client, namespace, flags: { dataMovers, agentSelector, daemonSet } };
  try {
    if (flags.watch === true) {
      await watchStatus(query, { all: flags.all === true, output });
      return;
    }
    const { describeServer } = await import('../../server/index.ts');
    const [world, damage, server] = await Promise.all([
      readStatus(query),
      describeDamage(client, namespace),
      // For people only: programs have metrics.
      output === 'json' || output === 'yaml' ? [] : describeServer(client, namespace),
    ]);
    for (const line of [...server, ...damage]) {
      process.stderr.write(`longshore: ${printable(line)}\n`);
    }
    const all = describeMovements(world);
    const rows = flags.all === true ? all : all.filter(({ isOver }) => !isOver);
    const documents = (): object[] => rows.map((row) => documentOf(row, averageRate));
    if (output === 'json') printJson(documents());
    else if (output === 'yaml') printText(stringify(documents()));
    else if (rows.length === 0) process.stderr.write(`${nothing(namespace, all.length)}\n`);
    else if (output === 'wide') {
      await printTable(
        WIDE_HEADER,
        rows.map((row) => wideCellsOf(row, averageRate)),
      );
    } else await printTable(HEADER, rows.map(cellsOf));
  } finally {
    client.close();
  }
}

/** The text instead of an empty table. */
const nothing = (namespace: string, hidden: number): string =>
  hidden === 0
    ? `no DataUpload, DataDownload, PodVolumeBackup or PodVolumeRestore in namespace ${namespace}`
    : `nothing is under way in namespace ${namespace}; --all shows ${hidden} that ${hidden === 1 ? 'has' : 'have'} ended`;
