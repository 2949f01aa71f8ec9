import { z } from 'zod';
import { entrySchema, triesSchema } from '../../runs/segment.ts';

/** An item that is done with. Names are short: there are hundreds of thousands. */
const itemSchema = z.object({
  /** `apiVersion/Kind`. */
  k: z.string(),
  ns: z.string(),
  n: z.string(),
  /** Its type, such as `deployments.apps`, where it is in the archive. */
  t: z.string().optional(),
  /** `namespace/name`, or the name, that it has in the archive, where that is another one. */
  as: z.string().optional(),
  /** Its pod is frozen. */
  o: z.literal(1).optional(),
  /** Operations, of which only the run knows the shape. */
  ops: z.array(z.looseObject({})).optional(),
  facts: z.array(z.looseObject({})).optional(),
});
export const recordsSchema = z.object({
  ...triesSchema.shape,
  items: z.array(itemSchema),
  /** Pods whose pre hooks run next: from here on they may be frozen, until they are done. */
  freezing: z.array(z.object({ k: z.string(), ns: z.string(), n: z.string() })).optional(),
  /**
   * Snapshots that providers are asked for next: until their PersistentVolumes are done, nobody
   * knows whether they are there.
   */
  snapshotting: z
    .array(z.object({ pv: z.string(), volume: z.string(), location: z.string() }))
    .optional(),
  /** PersistentVolumes of such that the log names as unknown. */
  toldOf: z.array(z.string()).optional(),
  /** Pods whose post hooks have run. */
  thawed: z.array(z.object({ k: z.string(), ns: z.string(), n: z.string() })),
  entries: z.array(entrySchema),
  /** Of its part of the tarball. */
  unpackedBytes: z.number().optional(),
  hooks: z.object({ hooksAttempted: z.number(), hooksFailed: z.number() }).optional(),
});

export type JournalItem = z.infer<typeof itemSchema>;
export type SegmentRecords = z.infer<typeof recordsSchema>;
