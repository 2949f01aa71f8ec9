import { describeMovements } from '../agent/index.ts';
import { clusterOf, dataMoversOf } from './cluster.ts';
import type { StatusFlags } from './node-agent.ts';
import { printJson, printTable } from './terminal.ts';

/** Prints DataUploads and DataDownloads, and what each waits for. */
export async function showStatus(flags: StatusFlags): Promise<void> {
  const { client, namespace } = clusterOf(flags);
  const rows = await describeMovements({
    client,
    namespace,
    dataMovers: dataMoversOf(flags),
    agentSelector: flags.agentSelector,
  });
  client.close();
  if (flags.json === true) {
    printJson(rows);
    return;
  }
  printTable(
    ['KIND', 'NAME', 'PHASE', 'NODE', 'AGE', 'WAITS FOR'],
    rows.map(({ kind, name, phase, node, ageSeconds, waitsFor }) => [
      kind,
      name,
      phase,
      node,
      ageText(ageSeconds),
      waitsFor,
    ]),
  );
}

/** As kubectl shows it: 45s, 12m, 5h, 3d. */
function ageText(seconds: number): string {
  if (seconds < 120) return `${Math.max(0, Math.floor(seconds))}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86_400)}d`;
}
