import type { KubeObject, Resource } from '../../kube/index.ts';

/** Lets kubectl name the object in its own words. */
export interface ErrorDetails {
  readonly name: string;
  readonly group?: string;
  readonly kind: string;
  readonly causes?: readonly { readonly field: string; readonly message: string }[];
}

/** An answer of the API that is not a success, in the form of metav1.Status. */
export class ApiError extends Error {
  readonly code: number;
  readonly reason: string;
  readonly details: ErrorDetails | undefined;
  constructor(code: number, reason: string, message: string, details?: ErrorDetails) {
    super(message);
    this.code = code;
    this.reason = reason;
    this.details = details;
  }
}

/** `datauploads.velero.io`: the name of a kind in messages. */
export const qualified = ({ group, plural }: Resource<KubeObject>): string =>
  group === '' ? plural : `${plural}.${group}`;

export const detailsOf = ({ group, plural }: Resource<KubeObject>, name: string): ErrorDetails => ({
  name,
  ...(group !== '' && { group }),
  kind: plural,
});

export const notFound = (resource: Resource<KubeObject>, name: string): ApiError =>
  new ApiError(
    404,
    'NotFound',
    `${qualified(resource)} "${name}" not found`,
    detailsOf(resource, name),
  );

export function invalid(
  resource: Resource<KubeObject>,
  name: string,
  field: string,
  message: string,
): ApiError {
  const { group, kind } = resource;
  const what = group === '' ? kind : `${kind}.${group}`;
  const details = { ...detailsOf(resource, name), kind, causes: [{ field, message }] };
  const text = `${what} "${name}" is invalid: ${field}: ${message}`;
  return new ApiError(422, 'Invalid', text, details);
}
