import type { Command } from 'commander';
import { formatBytes, formatGoTime, GO_ZERO_TIME_NS, type Nanoseconds } from '../../base/index.ts';
import { clientName, loadMaintenanceParameters, loadSchedule } from '../../repository/index.ts';
import { listReadableSnapshots } from '../../snapshot/index.ts';
import { openContext } from '../context.ts';
import { JSON_OPTION, verb, type VerbOptions } from '../program.ts';
import { printFact, printJson } from '../output/terminal.ts';
import { timeText } from '../output/time-text.ts';

export function statusDocument(
  uniqueId: Uint8Array,
  parameters: {
    hash: string;
    encryption: string;
    splitter: string;
    version: number;
    maxPackSize: number;
    indexVersion: number;
  },
  location: string,
): { location: string; uniqueID: string } & Record<string, unknown> {
  return {
    location,
    uniqueID: Buffer.from(uniqueId).toString('hex'),
    hash: parameters.hash,
    encryption: parameters.encryption,
    splitter: parameters.splitter,
    formatVersion: parameters.version,
    indexVersion: parameters.indexVersion,
    maxPackSize: parameters.maxPackSize,
  };
}

export function addStatus(group: Command): void {
  const example = 'longshore repository status --repo /backup/repo';
  verb(group, 'status', 'show the parameters, the contents and the state of maintenance', example)
    .option(...JSON_OPTION)
    .action(status);
}

async function status(options: VerbOptions): Promise<void> {
  await using context = await openContext(options);
  const { repository } = context;
  const { format, contents, storage, client } = repository;
  let [count, deleted, packed] = [0, 0, 0];
  for (const entry of contents.entries()) {
    if (entry.deleted) deleted++;
    else {
      count++;
      packed += entry.packedLength;
    }
  }
  const { snapshots, damaged } = await listReadableSnapshots(repository);
  const maintenance = await loadMaintenanceParameters(repository);
  const schedule = await loadSchedule(repository);
  const document = {
    ...statusDocument(format.uniqueId, format.parameters, storage.displayName),
    client: clientName(client),
    snapshots: snapshots.length,
    damagedSnapshots: damaged.length,
    contents: { count, deleted, packedBytes: packed },
    maintenance: {
      owner: maintenance?.owner ?? null,
      nextFull: timeOrNull(schedule.nextFullNs),
      nextQuick: timeOrNull(schedule.nextQuickNs),
    },
  };
  if (options.json === true) {
    printJson(document);
    return;
  }
  const nextText = (ns: Nanoseconds): string =>
    ns <= repository.clock.nowNs() ? 'is due' : timeText(ns, options);
  printFact(`location:    ${document.location}`);
  printFact(`unique id:   ${document.uniqueID}`);
  printFact(
    `format:      version ${format.parameters.version}, index version ${format.parameters.indexVersion}`,
  );
  printFact(`hash:        ${format.parameters.hash}`);
  printFact(`encryption:  ${format.parameters.encryption}`);
  printFact(`splitter:    ${format.parameters.splitter}`);
  const unreadable = damaged.length > 0 ? `, and ${damaged.length} with a damaged manifest` : '';
  printFact(`snapshots:   ${snapshots.length}${unreadable}`);
  printFact(`contents:    ${count} (${formatBytes(packed)} in packs), ${deleted} deleted`);
  printFact(`client:      ${document.client}`);
  printFact(
    `maintenance: by ${document.maintenance.owner ?? 'nobody'}, next full ${nextText(schedule.nextFullNs)}`,
  );
}

/** Null before the first run. */
const timeOrNull = (ns: Nanoseconds): string | null =>
  ns === GO_ZERO_TIME_NS ? null : formatGoTime(ns);
