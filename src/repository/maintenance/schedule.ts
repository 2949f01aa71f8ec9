import { z } from 'zod';
import {
  asBuffer,
  CodedError,
  formatGoTime,
  goJson,
  GO_ZERO_TIME_NS,
  isCode,
  type Nanoseconds,
  parseGoTime,
} from '../../base/index.ts';
import { blobId } from '../../blob/index.ts';
import { derivePurposeKey, openAesGcm, sealAesGcm } from '../format/keys.ts';
import type { Repository } from '../repository.ts';

export const SCHEDULE_BLOB = blobId('kopia.maintenance');
const AAD = Buffer.from('maintenance');
const PURPOSE = 'maintenance schedule';
/** Kopia: repo/maintenance/maintenance_schedule.go. */
const RUNS_MAX = 50;
/** 50 runs of about 20 tasks with statistics take 0.5 MiB. */
const SCHEDULE_BYTES_MAX = 16 << 20;

export interface TaskRun {
  readonly startNs: Nanoseconds;
  readonly endNs: Nanoseconds;
  readonly success: boolean;
  readonly error?: string | undefined;
  readonly extra?: unknown;
}

/** When maintenance is due, and the results of its tasks, newest first. */
export interface Schedule {
  nextFullNs: Nanoseconds;
  nextQuickNs: Nanoseconds;
  readonly runs: Map<string, TaskRun[]>;
}

const runSchema = z.looseObject({
  start: z.string(),
  end: z.string(),
  success: z.boolean().optional().default(false),
  error: z.string().optional(),
  extra: z.unknown().optional(),
});
const schema = z.looseObject({
  nextFullMaintenance: z.string().optional().default('0001-01-01T00:00:00Z'),
  nextQuickMaintenance: z.string().optional().default('0001-01-01T00:00:00Z'),
  runs: z.record(z.string(), z.array(runSchema).nullish()).nullish(),
});

function scheduleKey({ format }: Repository): Uint8Array {
  const { parameters, formatKey, uniqueId } = format;
  const secret = parameters.enablePasswordChange ? parameters.masterKey : formatKey;
  return derivePurposeKey(secret, uniqueId, PURPOSE);
}

/** If the blob is missing, the schedule is empty and everything is due. Throws `DAMAGED_BLOB`. */
export async function loadSchedule(repository: Repository): Promise<Schedule> {
  let sealed: Uint8Array;
  try {
    sealed = await repository.storage.getBlob(SCHEDULE_BLOB, {
      lengthMax: SCHEDULE_BYTES_MAX,
    });
  } catch (error) {
    if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
    return { nextFullNs: GO_ZERO_TIME_NS, nextQuickNs: GO_ZERO_TIME_NS, runs: new Map() };
  }
  try {
    const plaintext = openAesGcm(scheduleKey(repository), AAD, sealed);
    const raw = schema.parse(JSON.parse(asBuffer(plaintext).toString('utf8')));
    return {
      nextFullNs: parseGoTime(raw.nextFullMaintenance),
      nextQuickNs: parseGoTime(raw.nextQuickMaintenance),
      runs: new Map(
        Object.entries(raw.runs ?? {}).map(([task, runs]) => [task, (runs ?? []).map(parseRun)]),
      ),
    };
  } catch (cause) {
    const text = `blob ${SCHEDULE_BLOB} is damaged: the maintenance schedule cannot be read`;
    throw new CodedError('DAMAGED_BLOB', text, { cause, facts: { blobId: SCHEDULE_BLOB } });
  }
}

function parseRun(run: z.infer<typeof runSchema>): TaskRun {
  const { start, end, success, error, extra } = run;
  return { startNs: parseGoTime(start), endNs: parseGoTime(end), success, error, extra };
}

export async function putSchedule(repository: Repository, schedule: Schedule): Promise<void> {
  const runs = new Map(
    [...schedule.runs].map(([task, list]) => [task, list.slice(0, RUNS_MAX).map(encodeRun)]),
  );
  const json = goJson({
    nextFullMaintenance: formatGoTime(schedule.nextFullNs),
    nextQuickMaintenance: formatGoTime(schedule.nextQuickNs),
    runs,
  });
  const sealed = sealAesGcm(scheduleKey(repository), AAD, Buffer.from(json));
  await repository.storage.putBlob(SCHEDULE_BLOB, [sealed]);
}

function encodeRun({ startNs, endNs, success, error, extra }: TaskRun): object {
  return {
    start: formatGoTime(startNs),
    end: formatGoTime(endNs),
    success: success || undefined,
    error: error === '' ? undefined : error,
    extra,
  };
}
