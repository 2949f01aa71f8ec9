import { z } from 'zod';
import { CodedError, formatBytes, isCode, type Logger, messageOf } from '../../base/index.ts';
import { DATA_DOWNLOADS, type DataDownload, type KubeClient } from '../../kube/index.ts';
import type { InPlaceReport } from '../../mover/index.ts';
import { moverOf } from './named-mover.ts';
import { askPatiently } from '../rights.ts';

/** On a DataDownload that restored in place: the changes its data mover made, or would make. */
const REPORT = 'longshore.io/in-place-report';

const count = z.number().int().min(0);
const reportSchema = z.object({
  /** UID of the DataDownload. A copy of the CR has another UID and is not done. */
  of: z.string(),
  dryRun: z.boolean(),
  totalBytes: count,
  bytesCompared: count,
  bytesWritten: count,
  bytesDifferent: count,
  bytesRemoved: count,
  unchanged: count,
  created: count,
  changed: count,
  replaced: count,
  attributes: count,
  removed: count,
  kept: count,
  changes: z.array(z.string()),
});

/** Undefined until the volume is restored, and for an invalid report. */
export function inPlaceReportOf({ metadata }: DataDownload): InPlaceReport | undefined {
  const text = metadata.annotations?.[REPORT];
  if (text === undefined) return undefined;
  try {
    const { of, ...report } = reportSchema.parse(JSON.parse(text));
    return of === metadata.uid ? report : undefined;
  } catch {
    return undefined;
  }
}

/** Describes a restore in one sentence, for the status of the DataDownload. */
export function describeInPlace(report: InPlaceReport): string {
  const { dryRun, totalBytes, bytesWritten, bytesDifferent, bytesRemoved, removed } = report;
  const written = formatBytes(dryRun ? bytesDifferent : bytesWritten);
  const entries = [
    `${report.changed} changed`,
    `${report.created} created`,
    `${report.replaced} replaced`,
    `${report.attributes} with other attributes`,
    `${removed} removed`,
    `${report.unchanged} unchanged`,
    ...(report.kept > 0 ? [`${report.kept} kept that the snapshot does not have`] : []),
  ].join(', ');
  const done = dryRun ? 'dry run' : 'brought back in place';
  const would = dryRun ? 'would be ' : '';
  return `${done}: ${written} of ${formatBytes(totalBytes)} ${would}written and ${formatBytes(bytesRemoved)} ${would}removed; entries: ${entries}`;
}

/** Whether a data mover was allowed to write to the volume. */
export const mayHaveWritten = (download: DataDownload): boolean =>
  moverOf(download) !== undefined && download.spec.dataMoverConfig?.['longshore.dryRun'] !== 'true';

/** State of the volume after a restore in place ended early. */
export const inPlaceState = (download: DataDownload): string =>
  mayHaveWritten(download)
    ? 'the volume may hold files or blocks of before and of the backup: restore it again before something uses it'
    : 'nothing was written to the volume';

export interface ReportOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  /** Time limit for the API server's answer. */
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

/**
 * Records the report if the CR still names the same mover. Throws `NOT_NAMED` otherwise. Other
 * failures are only logged: the volume is restored, and only the report is missing.
 */
export async function noteInPlaceReport(
  download: DataDownload,
  report: InPlaceReport,
  { client, logger, timeoutMs, signal }: ReportOptions,
): Promise<void> {
  const { namespace, name, uid } = download.metadata;
  const own = moverOf(download)?.pod;
  const annotations = { [REPORT]: JSON.stringify({ of: uid, ...report }) };
  const tryOnce = async (): Promise<boolean> => {
    const scope = { namespace, fieldSelector: `metadata.name=${name}`, signal };
    const { items } = await client.listPage(DATA_DOWNLOADS, scope);
    const found = items.find(({ metadata }) => metadata.uid === uid);
    if (!found || moverOf(found)?.pod !== own) {
      const text = `DataDownload ${namespace ?? ''}/${name} has another data mover by now, which brings the volume back`;
      throw new CodedError('NOT_NAMED', text);
    }
    const { resourceVersion } = found.metadata;
    try {
      const metadata = { uid, resourceVersion, annotations };
      await client.patch(DATA_DOWNLOADS, found.metadata, { metadata }, { signal });
      return true;
    } catch (error) {
      if (isCode(error, 'KUBE_CONFLICT')) return false;
      throw error;
    }
  };
  try {
    while (!(await askPatiently(tryOnce, { timeoutMs, signal }))) signal.throwIfAborted();
  } catch (error) {
    if (signal.aborted || isCode(error, 'NOT_NAMED')) throw error;
    logger.warn(
      { name, error: messageOf(error) },
      'the report of a restore in place was not noted',
    );
  }
}
