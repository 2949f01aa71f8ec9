import { z } from 'zod';
import { journalFolder } from '../../../archive/index.ts';
import type { JournalKind } from '../../runs/journal.ts';
import { entrySchema, triesSchema } from '../../runs/segment.ts';

/** A finished item. Names are short, because there are hundreds of thousands. */
const itemSchema = z.object({
  k: z.string(),
  ns: z.string(),
  n: z.string(),
  /** Type in the archive, for example `deployments.apps`; missing if it is not there. */
  t: z.string().optional(),
  /** `namespace/name` or name in the archive, if an action has changed it. */
  as: z.string().optional(),
  /** Set if its pod is frozen. */
  o: z.literal(1).optional(),
  /** Operations. Only the run knows their shape. */
  ops: z.array(z.looseObject({})).optional(),
  facts: z.array(z.looseObject({})).optional(),
});
export const recordsSchema = z.object({
  ...triesSchema.shape,
  items: z.array(itemSchema),
  /** Pods whose pre hooks run next. They may be frozen until they are in `thawed`. */
  freezing: z.array(z.object({ k: z.string(), ns: z.string(), n: z.string() })).optional(),
  /**
   * Snapshots that are requested next. Their state is unknown until their PersistentVolume is in
   * `items`.
   */
  snapshotting: z
    .array(z.object({ pv: z.string(), volume: z.string(), location: z.string() }))
    .optional(),
  /** PersistentVolumes of unknown snapshots that the log has reported. */
  toldOf: z.array(z.string()).optional(),
  /** Pods whose post hooks have run. */
  thawed: z.array(z.object({ k: z.string(), ns: z.string(), n: z.string() })),
  entries: z.array(entrySchema),
  /** Unpacked size of this segment's part of the tarball. */
  unpackedBytes: z.number().optional(),
  hooks: z.object({ hooksAttempted: z.number(), hooksFailed: z.number() }).optional(),
});

export type JournalItem = z.infer<typeof itemSchema>;
export type SegmentRecords = z.infer<typeof recordsSchema>;

export const BACKUP_JOURNAL: JournalKind<SegmentRecords> = {
  word: 'backup',
  folderOf: journalFolder,
  schema: recordsSchema,
  newRecords: () => ({ items: [], thawed: [], entries: [] }),
};
