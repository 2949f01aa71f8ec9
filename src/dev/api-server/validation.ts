import { z } from 'zod';
import { lookup } from '../../base/index.ts';
import { CRDS, type KubeObject, type Resource, VELERO_GROUP } from '../../kube/index.ts';
import { invalid } from './api-error.ts';
import type { Stored } from './stored-object.ts';

/** Fields that the store itself reads. An invalid object would block the deletion of others. */
const metadataSchema = z.looseObject({
  name: z.string().optional(),
  generateName: z.string().optional(),
  labels: z.record(z.string(), z.string()).optional(),
  annotations: z.record(z.string(), z.string()).optional(),
  finalizers: z.array(z.string()).optional(),
  ownerReferences: z.array(z.looseObject({ uid: z.string() })).optional(),
});

/** Throws {@link ApiError}. */
export function assertMetadata(resource: Resource<KubeObject>, object: unknown): void {
  const { metadata } = (object ?? {}) as { metadata?: unknown };
  assertFits(resource, metadataSchema, { metadata: metadata ?? {} }, 'metadata');
}

/** Throws {@link ApiError} if a custom resource does not match its definition. */
export function validate(resource: Resource<KubeObject>, object: Stored): void {
  if (resource.group !== VELERO_GROUP) return;
  const definition = CRDS.find((crd) => crd.plural === resource.plural);
  if (!definition) return;
  for (const part of ['spec', 'status'] as const) {
    if (object[part] === undefined) continue;
    assertFits(resource, definition[part], object, part);
  }
}

function assertFits(
  resource: Resource<KubeObject>,
  schema: z.ZodType,
  object: object,
  part: string,
): void {
  const parsed = schema.safeParse(lookup(object as Record<string, unknown>, part));
  if (parsed.success) return;
  const [issue] = parsed.error.issues;
  const name = (object as { metadata?: { name?: unknown } }).metadata?.name;
  const field = [part, ...(issue?.path ?? [])].join('.');
  throw invalid(resource, typeof name === 'string' ? name : '', field, issue?.message ?? '');
}
