import { z } from 'zod';
import {
  asBuffer,
  isCode,
  mapLimited,
  parseGoTime,
  SECOND_NS,
  type Nanoseconds,
} from '../../base/index.ts';
import type { BlobMetadata } from '../../blob/index.ts';
import { openBlob } from '../content/sealed-blob.ts';
import { sessionOfBlob } from '../content/session.ts';
import type { Repository } from '../repository.ts';
import type { TaskContext, TaskStats } from './task.ts';

const DELETES_AT_ONCE = 8;
const markerSchema = z.looseObject({ id: z.string(), checkpointTime: z.string() });

/** Deletes packs and session markers that no index entry names and no running session may need. */
export async function deleteUnreferencedPacks(
  context: TaskContext,
  prefixes: readonly string[],
): Promise<TaskStats> {
  const { repository, safety, apply, startNs } = context;
  const referenced = new Set<string>();
  for (const { packBlobId } of repository.contents.entries()) referenced.add(packBlobId);
  const now = repository.clock.nowNs();
  const active = await activeSessions(repository, now - safety.sessionExpirationAgeNs);
  const doomed: BlobMetadata[] = [];
  const retained = { count: 0, bytes: 0 };
  for (const prefix of prefixes) {
    for await (const blob of repository.storage.listBlobs(prefix)) {
      if (referenced.has(blob.id)) continue;
      const isSettled =
        blob.timestampNs <= startNs + SECOND_NS &&
        now - blob.timestampNs >= safety.packDeleteMinAgeNs;
      if (isSettled && !active.has(sessionOfBlob(blob.id))) {
        doomed.push(blob);
      } else {
        retained.count++;
        retained.bytes += blob.lengthBytes;
      }
    }
  }
  const bytes = doomed.reduce((sum, { lengthBytes }) => sum + lengthBytes, 0);
  if (apply) {
    await mapLimited(doomed, DELETES_AT_ONCE, ({ id }) => {
      context.signal.throwIfAborted();
      return repository.storage.deleteBlob(id);
    });
  }
  return {
    kind: 'deleteUnreferencedPacksStats',
    data: {
      unreferencedPackCount: doomed.length + retained.count,
      unreferencedTotalSize: bytes + retained.bytes,
      deletedPackCount: apply ? doomed.length : 0,
      deletedTotalSize: apply ? bytes : 0,
      retainedPackCount: retained.count,
      retainedTotalSize: retained.bytes,
    },
  };
}

/** Sessions whose marker is younger than the limit. A marker that cannot be read keeps its session safe. */
async function activeSessions(
  { storage, codec }: Repository,
  sinceNs: Nanoseconds,
): Promise<Set<string>> {
  const active = new Set<string>();
  for await (const { id } of storage.listBlobs('s')) {
    try {
      const plaintext = openBlob(codec, id, await storage.getBlob(id));
      const marker = markerSchema.parse(JSON.parse(asBuffer(plaintext).toString('utf8')));
      if (parseGoTime(marker.checkpointTime) > sinceNs) active.add(marker.id);
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND')) continue;
      active.add(sessionOfBlob(id));
    }
  }
  return active;
}
