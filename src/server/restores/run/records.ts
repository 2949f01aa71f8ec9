import { z } from 'zod';
import { entrySchema, triesSchema } from '../../runs/segment.ts';

/** A finished item. Names are short, because there are hundreds of thousands. */
const itemSchema = z.object({
  k: z.string(),
  /** Namespace in the cluster. */
  ns: z.string(),
  n: z.string(),
  o: z.enum(['created', 'updated', 'skipped', 'failed']),
  /** Set if the cluster has it. */
  x: z.literal(1).optional(),
  /** Its name in the cluster, if that is different. */
  as: z.string().optional(),
  /** Operations. Only the run knows their shape. */
  ops: z.array(z.looseObject({})).optional(),
});
const hookSchema = z.object({ id: z.string(), pod: z.string().optional(), hasFailed: z.boolean() });

/** Records of a segment of a restore's journal. */
export const restoreRecordsSchema = z.object({
  ...triesSchema.shape,
  items: z.array(itemSchema),
  entries: z.array(entrySchema),
  facts: z.array(z.looseObject({ kind: z.string() })),
  /** Finished hooks. */
  hooks: z.array(hookSchema),
  /** Hooks that run next. */
  begun: z.array(z.string()).default([]),
  /** Operations of unfinished items. */
  operations: z.array(z.looseObject({})).default([]),
});
export type RestoreRecords = z.infer<typeof restoreRecordsSchema>;
