-- The variance of each neuron's activation over the cells of an operator, and its rank by variance.
--
-- subject   VARCHAR   the model
-- operator  VARCHAR   add, subtract, multiply or divide
-- layer     SMALLINT  decoder layer, from 0
-- neuron    INTEGER   neuron of the layer's MLP, from 0
-- mean      DOUBLE    mean activation over the operator's cells
-- variance  DOUBLE    variance of the activation over the operator's cells
-- rank      BIGINT    rank by variance among the operator's neurons of all layers, from 1 for the
--                     largest; equal variances by layer, then neuron
select
    subject, operator, layer, neuron, mean, variance,
    row_number() over (partition by operator order by variance desc, layer, neuron) as rank
from neuron_sums
where cells > 0
order by operator, rank
