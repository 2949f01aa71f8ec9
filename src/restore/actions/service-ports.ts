import { CodedError, jsonCopy, messageOf } from '../../base/index.ts';
import { type Fields, fieldsAt, isFields, listAt, textOf } from './fields.ts';

const LAST_APPLIED = 'kubectl.kubernetes.io/last-applied-configuration';

/**
 * Copies a Service without assigned addresses and ports. Keeps user-chosen values. Velero:
 * pkg/restore/actions/service_action.go.
 */
export function withoutGivenPorts(service: Fields, preservesNodePorts: boolean): Fields {
  const copy = jsonCopy(service);
  const spec = fieldsAt(copy, 'spec');
  if (!spec) return copy;
  if (spec.clusterIP !== 'None') {
    delete spec.clusterIP;
    delete spec.clusterIPs;
  }
  if (preservesNodePorts) return copy;
  if (spec.type !== 'ExternalName') {
    const isChosen = chosenPorts(copy);
    for (const port of listAt(spec, 'ports')) if (!isChosen(port)) delete port.nodePort;
  }
  const hasHealthPort = spec.externalTrafficPolicy === 'Local' && spec.type === 'LoadBalancer';
  if (hasHealthPort && !isHealthPortChosen(copy)) delete spec.healthCheckNodePort;
  return copy;
}

/** The object in the last-applied annotation of `kubectl apply`. Throws `BAD_ANNOTATION`. */
function lastAppliedTo(service: Fields): Fields | undefined {
  const text = fieldsAt(service, 'metadata', 'annotations')?.[LAST_APPLIED];
  if (typeof text !== 'string') return undefined;
  try {
    const applied: unknown = JSON.parse(text);
    if (!isFields(applied)) throw new Error('it is no object');
    return applied;
  } catch (cause) {
    const why = `the annotation ${LAST_APPLIED} cannot be read: ${messageOf(cause)}`;
    throw new CodedError('BAD_ANNOTATION', why, { cause });
  }
}

/** The field sets in `managedFields`. */
const ownedFields = (service: Fields): Fields[] =>
  listAt(service, 'metadata', 'managedFields').flatMap(({ fieldsV1 }) =>
    isFields(fieldsV1) ? [fieldsV1] : [],
  );

/**
 * Whether a user chose a node port. The last-applied annotation decides by name, or by value for
 * unnamed ports. Without the annotation, `managedFields` decides.
 */
function chosenPorts(service: Fields): (port: Fields) => boolean {
  const applied = lastAppliedTo(service);
  if (!applied) {
    const keys = new Set(
      ownedFields(service).flatMap((fields) =>
        Object.entries(fieldsAt(fields, 'f:spec', 'f:ports') ?? {})
          .filter(([, port]) => isFields(port) && 'f:nodePort' in port)
          .map(([key]) => key),
      ),
    );
    return ({ port, protocol }) =>
      keys.has(`k:{"port":${Number(port)},"protocol":"${textOf(protocol)}"}`);
  }
  const names = new Set<string>();
  const numbers = new Set<number>();
  for (const { name, nodePort } of listAt(applied, 'spec', 'ports')) {
    const number = Math.trunc(Number(nodePort ?? 0));
    if (Number.isNaN(number)) {
      throw new CodedError(
        'BAD_ANNOTATION',
        `the annotation ${LAST_APPLIED} has a node port that is no number`,
      );
    }
    if (number <= 0) continue;
    if (name === undefined) numbers.add(number);
    else names.add(textOf(name));
  }
  return ({ name, nodePort }) =>
    textOf(name) === '' ? numbers.has(Number(nodePort)) : names.has(textOf(name));
}

function isHealthPortChosen(service: Fields): boolean {
  const chosen = Number(fieldsAt(lastAppliedTo(service), 'spec')?.healthCheckNodePort ?? 0);
  if (chosen !== 0) return true;
  return ownedFields(service).some((fields) =>
    isFields(fieldsAt(fields, 'f:spec')?.['f:healthCheckNodePort']),
  );
}
