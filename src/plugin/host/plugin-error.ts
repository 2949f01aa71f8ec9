import { CodedError, isCanceled } from '../../base/index.ts';
import { invalidOperationId, withoutOperations } from '../operation-errors.ts';
import { framesIn, GrpcCode, GrpcError } from '../protocol/grpc-status.ts';
import { RemoteError } from './grpc-client.ts';

const NO_OPERATIONS = withoutOperations().message;
const [BAD_ID_START = '', BAD_ID_END = ''] = invalidOperationId('|').message.split('|');

export interface FailedCall {
  readonly command: string;
  readonly call: string;
  /** How the process ended; undefined while it runs. */
  readonly exit: string | undefined;
}

/**
 * The error of a failed call. `PLUGIN_REFUSED` has the plugin's own text. `PLUGIN_GONE`: the
 * process ended or the connection broke. `PLUGIN_TIMEOUT`: the plugin did not answer in time.
 * `PLUGIN_MESSAGE`: one side rejects a message. `NO_OPERATIONS` and `BAD_OPERATION_ID` are the same
 * as from actions of this process. The facts name the source position in the plugin.
 */
export function pluginError(error: unknown, { command, call, exit }: FailedCall): unknown {
  if (isCanceled(error) || !(error instanceof Error)) return error;
  const facts = { command, call };
  const make = (code: string, text: string): CodedError =>
    new CodedError(code, text, { cause: error, facts });
  if (error instanceof RemoteError) return refusal(error, { command, call, exit });
  if (error instanceof GrpcError) {
    switch (error.grpcCode) {
      case GrpcCode.unavailable: {
        const how = exit === undefined ? 'no longer answers' : `ended ${exit}`;
        return make('PLUGIN_GONE', `plugin ${command} ${how} while it was asked for ${call}`);
      }
      case GrpcCode.deadlineExceeded:
        return make('PLUGIN_TIMEOUT', `plugin ${command} gave ${error.message} to ${call}`);
      default:
        return make('PLUGIN_MESSAGE', `plugin ${command}, asked for ${call}: ${error.message}`);
    }
  }
  // Invalid protobuf, and the reason of the caller's signal, stay as they are.
  return error;
}

function refusal(error: RemoteError, { command, call }: FailedCall): CodedError {
  const { message, status } = error;
  const [frame] = framesIn(status);
  const facts = {
    command,
    call,
    grpcCode: status.code,
    ...(frame && { 'error.file': `${frame.file}:${frame.line}`, 'error.function': frame.function }),
  };
  const options = { cause: error, facts };
  if (message === NO_OPERATIONS) return new CodedError('NO_OPERATIONS', message, options);
  if (message.startsWith(BAD_ID_START) && message.endsWith(BAD_ID_END)) {
    return new CodedError('BAD_OPERATION_ID', message, options);
  }
  if (status.code === GrpcCode.resourceExhausted) {
    const text = `plugin ${command} does not take the message of ${call}: ${message}. Programs in Go take 4 MiB unless they are built for more`;
    return new CodedError('PLUGIN_MESSAGE', text, options);
  }
  const text = message === '' ? `plugin ${command} failed ${call} without a word` : message;
  return new CodedError('PLUGIN_REFUSED', text, options);
}
