export { cancelOperations } from '../../operations/cancel.ts';
