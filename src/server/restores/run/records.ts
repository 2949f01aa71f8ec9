import { z } from 'zod';
import { entrySchema, triesSchema } from '../../runs/segment.ts';

/** An item that is done with. Names are short: there are hundreds of thousands. */
const itemSchema = z.object({
  /** `apiVersion/Kind`. */
  k: z.string(),
  /** That it is restored to. */
  ns: z.string(),
  n: z.string(),
  /** What became of it. */
  o: z.enum(['created', 'updated', 'skipped', 'failed']),
  /** The cluster has it. */
  x: z.literal(1).optional(),
  /** Under this name, where that is another one. */
  as: z.string().optional(),
  /** Operations, of which only the run knows the shape. */
  ops: z.array(z.looseObject({})).optional(),
});
const hookSchema = z.object({ id: z.string(), pod: z.string().optional(), hasFailed: z.boolean() });

/** What a segment of a restore's journal says. */
export const restoreRecordsSchema = z.object({
  ...triesSchema.shape,
  items: z.array(itemSchema),
  entries: z.array(entrySchema),
  /** What was done about volumes. */
  facts: z.array(z.looseObject({ kind: z.string() })),
  /** Hooks in pods that are over. */
  hooks: z.array(hookSchema),
  /** Hooks that are run next. */
  begun: z.array(z.string()).default([]),
  /** Operations of items that are not over yet. */
  operations: z.array(z.looseObject({})).default([]),
});
export type RestoreRecords = z.infer<typeof restoreRecordsSchema>;
