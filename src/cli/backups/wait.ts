import { setTimeout as sleep } from 'node:timers/promises';
import { type MovementDescription, RecentRates, StatusFollower } from '../../agent/index.ts';
import { CodedError, formatBytes, isCanceled, isCode, messageOf } from '../../base/index.ts';
import {
  isPassing,
  isRefusedForNow,
  isUnauthorized,
  isWaiting,
  judged,
  type KubeObject,
  REFUSED_MS,
  toneOf,
} from '../../kube/index.ts';
import { countOf } from '../output/numbers.ts';
import { stdoutTerminal } from '../output/live-block.ts';
import { writeOutput } from '../output/streams.ts';
import { formatElapsed } from '../progress/lines.ts';
import { printable } from '../output/terminal.ts';
import { isLive, printPainted } from './colours.ts';
import { isRunOver, itemsOf, type Noun, phaseOf, type Run } from './noun.ts';
import type { Session } from './session.ts';
import { totalsOf, volumesOf } from './volumes.ts';
import { LiveWait, PlainWait, type WaitScreen } from './wait-screen.ts';

const LOOK_EVERY_MS = 1000;
/** Servers start a new run within seconds. */
const TAKEN_UP_MS = 30_000;
/** Shorter outages are not reported. */
const AWAY_MS = 5000;

export interface WaitForEndOptions {
  readonly screen?: WaitScreen;
  readonly everyMs?: number;
  /** {@link TAKEN_UP_MS}; less in tests. */
  readonly takenUpMs?: number;
  /** {@link REFUSED_MS}; less in tests. */
  readonly refusedMs?: number;
}

/**
 * Shows the progress of a backup or restore until it ends, without a time limit. Ctrl-C ends only
 * the wait. Retries while the API server is away. Throws `NOT_COMPLETED` for any end but
 * `Completed`, `RUN_GONE` for a deleted object, and `CANCELED` after Ctrl-C. Refusals of the API
 * server are thrown with a note that the run continues.
 */
export async function waitForEnd(
  noun: Noun,
  object: KubeObject,
  session: Session,
  {
    screen = newScreen(),
    everyMs = LOOK_EVERY_MS,
    takenUpMs = TAKEN_UP_MS,
    refusedMs = REFUSED_MS,
  }: WaitForEndOptions = {},
): Promise<void> {
  const { client, namespace, signal } = session;
  const { name } = object.metadata;
  const find = judged(() => client.find(noun.resource, { namespace, name }, { signal }), {
    refusedMs,
    only: isUnauthorized,
  });
  const title = `${noun.word} ${object.metadata.name}`;
  const following = new AbortController();
  const follower = new StatusFollower({ client, namespace });
  const running = follower.run(following.signal);
  const startMs = performance.now();
  const rates = new RecentRates();
  let latest = object;
  /** Start of the wait for a server that starts the run. */
  let seenMs = startMs;
  let volumes: readonly MovementDescription[] | undefined;
  let away: { readonly sinceMs: number; readonly why: string } | undefined;
  try {
    for (;;) {
      const askedMs = performance.now();
      const looked = await look(noun, object, find, signal);
      if (looked.object) latest = looked.object;
      else seenMs = performance.now();
      away =
        looked.why === undefined
          ? undefined
          : { sinceMs: away?.sinceMs ?? askedMs, why: looked.why };
      const world = follower.look();
      if (world) {
        volumes = volumesOf(world, noun, object);
        rates.see(volumes, performance.now());
      }
      const phase = phaseOf(latest);
      const awayMs = away ? performance.now() - away.sinceMs : 0;
      const outage =
        away && awayMs > AWAY_MS
          ? `the API server is away, and is waited for: ${away.why}`
          : undefined;
      const isLate = performance.now() - seenMs > takenUpMs;
      const note = outage ?? follower.outage ?? (away ? undefined : noteOf(noun, latest, isLate));
      await screen.show({ title, phase, items: itemsOf(latest), volumes, rateOf: rates.of, note });
      if (isRunOver(latest)) break;
      await sleep(everyMs, undefined, { signal });
    }
  } catch (error) {
    if (!signal.aborted || !isCanceled(error)) throw asRefusal(error, title);
    const text = `no longer waiting: ${title} goes on in the cluster; "longshore ${noun.word} describe ${object.metadata.name}" shows how far it is`;
    throw new CodedError('CANCELED', text, { cause: error });
  } finally {
    following.abort();
    await running;
  }
  tellEnd(noun, latest, volumes ?? [], (performance.now() - startMs) / 1000);
}

/** A right or login may expire during the wait. The run continues in the cluster. */
function asRefusal(error: unknown, title: string): unknown {
  if (!isCode(error, 'KUBE_UNAUTHORIZED', 'KUBE_FORBIDDEN')) return error;
  const text = `no longer waiting: ${messageOf(error)}; ${title} goes on in the cluster`;
  return new CodedError(error.code, text, { cause: error });
}

const newScreen = (): WaitScreen =>
  isLive()
    ? new LiveWait(stdoutTerminal)
    : new PlainWait((line) => writeOutput(`${printable(line)}\n`));

/** The current object, or the reason of a failed read. Throws `RUN_GONE`. */
async function look(
  { word }: Noun,
  { metadata: { name, uid } }: KubeObject,
  find: () => Promise<KubeObject | undefined>,
  signal: AbortSignal,
): Promise<{ readonly object?: KubeObject; readonly why?: string }> {
  try {
    const object = await find();
    if (object && object.metadata.uid === uid) return { object };
  } catch (error) {
    signal.throwIfAborted();
    if (!isPassing(error) && !isRefusedForNow(error)) throw error;
    return { why: messageOf(error) };
  }
  throw new CodedError('RUN_GONE', `${word} ${name} was deleted while it was waited for`);
}

/** Why the run waits. */
function noteOf({ word }: Noun, run: Run, isLate: boolean): string | undefined {
  const phase = phaseOf(run);
  const position = run.status?.queuePosition ?? 0;
  if (phase === 'New' && isLate) {
    return `no server has taken it up yet; does one run that makes ${word}s (longshore server, or Velero's)?`;
  }
  if (phase === 'Queued' && position > 0) return `it is number ${position} in the queue`;
  if (isWaiting(phase)) {
    const { status = {} } = run;
    const asked =
      status.backupItemOperationsAttempted ?? status.restoreItemOperationsAttempted ?? 0;
    const done =
      (status.backupItemOperationsCompleted ?? status.restoreItemOperationsCompleted ?? 0) +
      (status.backupItemOperationsFailed ?? status.restoreItemOperationsFailed ?? 0);
    return `all items are done; it waits for operations, of which ${done} of ${asked} have ended`;
  }
  return undefined;
}

function tellEnd(
  { word }: Noun,
  run: Run,
  volumes: readonly MovementDescription[],
  seconds: number,
): void {
  const { name } = run.metadata;
  const { errors = 0, warnings = 0, failureReason, validationErrors = [] } = run.status ?? {};
  const phase = phaseOf(run);
  const { count, bytesDone } = totalsOf(volumes);
  const facts = [
    countOf(itemsOf(run).done, 'items'),
    ...(count > 0 ? [`${countOf(count, 'volumes')} with ${formatBytes(bytesDone)}`] : []),
    ...(warnings > 0 ? [countOf(warnings, 'warnings')] : []),
    formatElapsed(seconds),
  ];
  if (phase === 'Completed') {
    printPainted(`${word} ${name} has ended: Completed (${facts.join(', ')})`, toneOf(phase));
    return;
  }
  const reasons = [failureReason ?? '', ...validationErrors].filter((reason) => reason !== '');
  const why = reasons.length > 0 ? `: ${reasons.join('; ')}` : ` with ${countOf(errors, 'errors')}`;
  // A refused run has no log.
  const more =
    phase === 'FailedValidation'
      ? `"longshore ${word} describe ${name}" says what to do`
      : `"longshore ${word} describe ${name}" and "longshore ${word} logs ${name}" say more`;
  const text = `${word} ${name} has ended as ${phase}${why} (${facts.join(', ')}); ${more}`;
  throw new CodedError('NOT_COMPLETED', text);
}
