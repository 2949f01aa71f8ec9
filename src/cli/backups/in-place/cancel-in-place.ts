import { inPlaceState } from '../../../agent/index.ts';
import { CodedError, isCode } from '../../../base/index.ts';
import {
  DATA_DOWNLOADS,
  type DataDownload,
  isInPlace,
  isMovementOver,
  waitFor,
} from '../../../kube/index.ts';
import { printable, printLine } from '../../output/terminal.ts';
import type { Session } from '../session.ts';

/** Must exceed `--fence-timeout`: a disconnected data mover delays the CR's end that long. */
const WAIT_MS = 900_000;

const phaseOf = ({ status }: DataDownload): string => status?.phase || 'New';
const isOver = (download: DataDownload): boolean => isMovementOver(phaseOf(download));
const nameOf = ({ metadata }: DataDownload): string =>
  `DataDownload ${metadata.namespace ?? ''}/${metadata.name}`;

/** The name of a Restore contains no slash. */
export const isClaimName = (name: string): boolean => name.includes('/');

/**
 * Cancels the restores in place of a claim, given as NAMESPACE/PVC, or the restore with this
 * DataDownload name. Returns false if there is no such DataDownload. Throws `NO_RESTORE` for a
 * claim without any, and `RESTORE_OVER` if all have ended.
 */
export async function cancelInPlace(
  name: string,
  flags: { readonly wait?: boolean },
  session: Session,
): Promise<boolean> {
  const found = await restoresOf(name, session);
  if (found.length === 0) {
    if (!isClaimName(name)) return false;
    const text = `there is no restore in place of PVC ${name}: "longshore node-agent status" lists what runs`;
    throw new CodedError('NO_RESTORE', text);
  }
  const running = found.filter((download) => !isOver(download));
  if (running.length === 0) {
    const which = found.map((download) => `${nameOf(download)}: ${phaseOf(download)}`).join(', ');
    throw new CodedError('RESTORE_OVER', `no restore in place of ${name} runs (${which})`);
  }
  const told = new Set<DataDownload>();
  for (const download of running) if (await cancel(download, session)) told.add(download);
  for (const download of running) {
    if (!told.has(download)) {
      printLine(printable(`${nameOf(download)} was deleted before it could be told to end`));
    } else if (flags.wait === true) printLine(printable(endOf(await ended(download, session))));
    else {
      printLine(`the restore in place of ${claimOf(download)} (${nameOf(download)}) is told to end; it has when its phase is Canceled`); // prettier-ignore
    }
  }
  return true;
}

async function restoresOf(
  name: string,
  { client, namespace, signal }: Session,
): Promise<DataDownload[]> {
  if (!isClaimName(name)) {
    const found = await client.find(DATA_DOWNLOADS, { namespace, name }, { signal });
    return found && isInPlace(found) ? [found] : [];
  }
  const all = await client.list(DATA_DOWNLOADS, { namespace, signal });
  return all.filter((download) => isInPlace(download) && claimOf(download) === name);
}

/**
 * Cancels only this object, not a later one of the same name. Agents ignore the cancel of an ended
 * one. Returns false for a deleted object, so that the others are still canceled.
 */
async function cancel(download: DataDownload, { client, signal }: Session): Promise<boolean> {
  const { uid, namespace = '', name } = download.metadata;
  const patch = { metadata: { uid }, spec: { cancel: true } };
  try {
    await client.patch(DATA_DOWNLOADS, { namespace, name }, patch, { signal });
    return true;
  } catch (error) {
    // The server answers with a conflict if another object has the name now.
    if (!isCode(error, 'KUBE_NOT_FOUND', 'KUBE_CONFLICT')) throw error;
    return false;
  }
}

async function ended(download: DataDownload, { client, signal }: Session): Promise<DataDownload> {
  const { uid, namespace = '', name } = download.metadata;
  const look = (now: DataDownload | undefined): DataDownload | undefined => {
    if (now?.metadata.uid !== uid) {
      throw new CodedError('RUN_GONE', `${nameOf(download)} was deleted while it was waited for`);
    }
    return isOver(now) ? now : undefined;
  };
  try {
    const wait = { timeoutMs: WAIT_MS, signal };
    return await waitFor(client, DATA_DOWNLOADS, { namespace, name }, look, wait);
  } catch (error) {
    if (!isCode(error, 'WAIT_TIMEOUT')) throw error;
    const text = `${nameOf(download)} has not ended yet: does a node-agent of Longshore run? "longshore node-agent status" says what it waits for`;
    throw new CodedError('WAIT_TIMEOUT', text, { cause: error });
  }
}

function endOf(download: DataDownload): string {
  const message = download.status?.message ?? '';
  const what = `the restore in place of ${claimOf(download)} has ended: ${phaseOf(download)}`;
  if (phaseOf(download) !== 'Canceled') return message === '' ? what : `${what}: ${message}`;
  return `${what}; ${inPlaceState(download)}`;
}

const claimOf = ({ spec: { targetVolume } }: DataDownload): string =>
  `${targetVolume.namespace}/${targetVolume.pvc}`;
