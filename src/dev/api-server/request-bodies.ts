import type { IncomingMessage } from 'node:http';
import type { KubeObject, Resource } from '../../kube/index.ts';
import { ApiError } from './api-error.ts';
import { bodyTypeOf, type Guard } from './access.ts';
import { jsonPatch, mergePatch, strategicMergePatch } from './patches.ts';
import { decodeProtobuf, PROTOBUF_TYPE } from './protobuf.ts';
import { isBuiltIn, type ResourcePlace } from './resources.ts';
import type { Stored } from './stored-object.ts';

const BODY_BYTES_MAX = 8 << 20;

/** The whole body of a request; undefined if it is empty. Throws {@link ApiError}. */
export async function readBody(request: IncomingMessage, guard: Guard): Promise<unknown> {
  const parts: Buffer[] = [];
  let length = 0;
  for await (const part of request) {
    if (length === 0) guard.admitBody(request);
    length += (part as Buffer).length;
    if (length > BODY_BYTES_MAX) throw new ApiError(413, 'RequestEntityTooLarge', 'too large');
    parts.push(part as Buffer);
  }
  if (length === 0) return undefined;
  if (bodyTypeOf(request) === PROTOBUF_TYPE) return decodeProtobuf(Buffer.concat(parts));
  const text = Buffer.concat(parts).toString('utf8');
  try {
    return JSON.parse(text);
  } catch {
    // Server-side apply also allows YAML, but this server supports only its JSON form.
    throw new ApiError(415, 'UnsupportedMediaType', 'only JSON is supported here');
  }
}

interface Patch {
  readonly resource: Resource<KubeObject>;
  readonly before: Stored;
  readonly patch: unknown;
  readonly type: string;
}

export function patched({ resource, before, patch, type }: Patch): unknown {
  switch (type) {
    case 'application/json-patch+json':
      return jsonPatch(before, patch);
    case 'application/strategic-merge-patch+json': {
      // Lists of custom resources have no known merge keys.
      if (isBuiltIn(resource)) return strategicMergePatch(before, patch);
      const text =
        'the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml';
      throw new ApiError(415, 'UnsupportedMediaType', text);
    }
    default:
      return mergePatch(before, patch);
  }
}

/** The object of a body, with the name from the path. Protects other objects. */
export function named(body: unknown, { name, namespace }: ResourcePlace): Stored {
  const object = objectOf(body);
  const where = { name: name ?? '', ...(namespace !== undefined && { namespace }) };
  return { ...object, metadata: { ...object.metadata, ...where } };
}

export function objectOf(body: unknown): Stored {
  if (typeof body === 'object' && body !== null && !Array.isArray(body)) return body as Stored;
  throw new ApiError(400, 'BadRequest', 'the body is not an object');
}
